// What reads TiDB-Binlog's topics for its users: the reader of TiDB's own tools; see deploy/go.sh. Go adds what it needs.
module penstock.example/obinlog

go 1.20

require github.com/pingcap/tidb v1.1.0-beta.0.20230303060110-ad01574a71b3
