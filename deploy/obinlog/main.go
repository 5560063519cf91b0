// Prints the messages of a topic that TiDB's own reader returns, as JSON, until none has come for a while.
package main

import (
	"encoding/json"
	"flag"
	"os"
	"strings"
	"time"

	"github.com/pingcap/tidb/tidb-binlog/driver/reader"
)

func main() {
	brokers := flag.String("brokers", "127.0.0.1:9092", "host:port, comma-separated")
	cluster := flag.String("cluster", "", "the cluster's id, which the topic is named for")
	topic := flag.String("topic", "", "the topic, if it has another name")
	after := flag.Int64("after", 0, "the commit_ts behind which to begin")
	offset := flag.Int64("offset", 0, "the offset to begin at, without after")
	quiet := flag.Duration("quiet", 5*time.Second, "how long no message may come before it ends")
	flag.Parse()
	opened, err := reader.NewReader(&reader.Config{
		KafkaAddr: strings.Split(*brokers, ","),
		Topic:     *topic,
		ClusterID: *cluster,
		CommitTS:  *after,
		Offset:    *offset,
	})
	if err != nil {
		panic(err)
	}
	out := json.NewEncoder(os.Stdout)
	for {
		select {
		case message := <-opened.Messages():
			if err := out.Encode(message); err != nil {
				panic(err)
			}
		case <-time.After(*quiet):
			return
		}
	}
}
