// A PD and a TiKV for a TiDB that is tried out, in one process beside it: TiDB's own test store, which it otherwise has
// within itself, answers as a TiKV by gRPC, an etcd and the services of a PD share a second port. So a TiDB can be
// killed without its store, several can share one, and a caller that asks a TiKV about a transaction gets a real answer.
//
// There is no data to keep in it: locks are in memory, and there is one replica.
package main

import (
	"flag"
	"log"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/pingcap/kvproto/pkg/metapb"
	"github.com/pingcap/kvproto/pkg/pdpb"
	"github.com/pingcap/kvproto/pkg/tikvpb"
	"github.com/pingcap/tidb/store/mockstore/unistore/config"
	"github.com/pingcap/tidb/store/mockstore/unistore/server"
	"github.com/pingcap/tidb/store/mockstore/unistore/tikv"
	"go.etcd.io/etcd/server/v3/embed"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
)

const messageBytesMax = 64 << 20

func main() {
	pdAddr := flag.String("pd", "127.0.0.1:2379", "address of the PD and its etcd")
	peerAddr := flag.String("peer", "127.0.0.1:2380", "address at which that etcd waits for others of its kind")
	storeAddr := flag.String("store", "127.0.0.1:20160", "address of the TiKV")
	dataDir := flag.String("data-dir", "data", "folder of all data")
	clusterID := flag.Uint64("cluster-id", 7205759403792793601, "what PD calls the cluster")
	flag.Parse()

	store, regions, cluster := openStore(filepath.Join(*dataDir, "tikv"), *storeAddr, *clusterID)
	etcd := startPd(*pdAddr, *peerAddr, filepath.Join(*dataDir, "pd"), &service{
		clusterID: *clusterID, url: "http://" + *pdAddr, cluster: cluster, regions: regions,
		serviceSafePoints: map[string]uint64{},
	})
	listener, err := net.Listen("tcp", *storeAddr)
	must(err)
	answers := grpc.NewServer(grpc.MaxRecvMsgSize(messageBytesMax))
	tikvpb.RegisterTikvServer(answers, store)
	grpc_health_v1.RegisterHealthServer(answers, health.NewServer())
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	go func() {
		<-signals
		answers.Stop()
	}()
	log.Printf("ready: PD at %s, TiKV at %s", *pdAddr, *storeAddr)
	must(answers.Serve(listener))
	etcd.Close()
	store.Stop()
}

// openStore opens the test store, with one region when it is new.
func openStore(folder, addr string, clusterID uint64) (*tikv.Server, *tikv.MockRegionManager, *tikv.MockPD) {
	must(os.MkdirAll(folder, 0o755))
	settings := config.DefaultConf
	settings.Server.StoreAddr, settings.Server.Raft = addr, false
	settings.Engine.DBPath, settings.Engine.ValueThreshold = folder, 0
	store, regions, cluster, err := server.NewMock(&settings, clusterID)
	must(err)
	ids := regions.AllocIDs(3)
	must(regions.Bootstrap(
		[]*metapb.Store{{Id: ids[0], Address: addr, Version: "7.0.0"}},
		&metapb.Region{
			Id: ids[1], RegionEpoch: &metapb.RegionEpoch{},
			Peers: []*metapb.Peer{{Id: ids[2], StoreId: ids[0]}},
		},
	))
	return store, regions, cluster
}

// startPd starts an etcd whose port answers PD's calls too, as a PD's does.
func startPd(addr, peerAddr, folder string, pd *service) *embed.Etcd {
	settings := embed.NewConfig()
	settings.Name, settings.Dir, settings.LogLevel = "pd", folder, "warn"
	settings.UnsafeNoFsync = true
	client, peer := url.URL{Scheme: "http", Host: addr}, url.URL{Scheme: "http", Host: peerAddr}
	settings.LCUrls, settings.ACUrls = []url.URL{client}, []url.URL{client}
	settings.LPUrls, settings.APUrls = []url.URL{peer}, []url.URL{peer}
	settings.InitialCluster = settings.InitialClusterFromName(settings.Name)
	settings.ServiceRegister = func(server *grpc.Server) { pdpb.RegisterPDServer(server, pd) }
	settings.UserHandlers = map[string]http.Handler{"/pd/": http.HandlerFunc(pd.answerPage)}
	etcd, err := embed.StartEtcd(settings)
	must(err)
	<-etcd.Server.ReadyNotify()
	return etcd
}

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
