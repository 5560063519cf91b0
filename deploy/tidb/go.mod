// What a TiDB is tried out with; see deploy/go.sh. Go adds what these need, in the versions that follow from them.
module penstock.example/tidb

go 1.20

require (
	github.com/pingcap/kvproto v0.0.0-20230228041042-1e9aca94bab6
	github.com/pingcap/tidb v1.1.0-beta.0.20230303060110-ad01574a71b3
	github.com/pingcap/tidb/parser v0.0.0-20230303060110-ad01574a71b3
	go.etcd.io/etcd/server/v3 v3.5.2
	google.golang.org/grpc v1.52.3
)

// TiDB's own replacements, which count in the main module only.
replace (
	github.com/dgrijalva/jwt-go => github.com/form3tech-oss/jwt-go v3.2.6-0.20210809144907-32ab6a8243d7+incompatible
	go.opencensus.io => go.opencensus.io v0.23.1-0.20220331163232-052120675fac
)
