// What others test an HTTP/2 and gRPC server with; see deploy/go.sh. Go adds what these need.
module penstock.example/conformance

go 1.21

require (
	github.com/fatih/color v1.16.0
	github.com/spf13/cobra v1.8.1
	github.com/summerwind/h2spec v2.2.1+incompatible
	google.golang.org/grpc v1.66.3
)
