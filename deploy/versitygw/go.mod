// A server of S3 that keeps objects in a folder; see deploy/go.sh. Go adds what it needs.
module penstock.example/versitygw

go 1.24.0

require github.com/versity/versitygw v1.8.0
