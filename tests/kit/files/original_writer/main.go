// Writes a file as TiDB-Binlog's own Drainer does with db-type = "file": its translator, its binlogger.
//
// It is how the digest in tests/unit/drainer/test_forty_types.py was made, and is built within a checkout of
// pingcap/tidb-binlog (ec3adceb), which the Go module proxy does not serve:
//
//	cp -r tests/kit/files/original_writer CHECKOUT/cmd/ && cd CHECKOUT
//	go build -ldflags=-checklinkname=0 ./cmd/original_writer
//
// stdin has a line for each binlog: {"Schema": name, "Table": TiDB's JSON, "Binlog": base64}.
package main

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"

	"github.com/pingcap/tidb-binlog/drainer/translator"
	"github.com/pingcap/tidb-binlog/pkg/binlogfile"
	"github.com/pingcap/tidb/parser/model"
	tipb "github.com/pingcap/tipb/go-binlog"
)

type getter struct {
	schema string
	table  *model.TableInfo
}

func (g *getter) TableByID(id int64) (*model.TableInfo, bool) { return g.table, id == g.table.ID }
func (g *getter) SchemaAndTableName(id int64) (string, string, bool) {
	return g.schema, g.table.Name.O, true
}
func (g *getter) CanAppendDefaultValue(id int64, v int64) bool { return false }
func (g *getter) TableBySchemaVersion(id int64, v int64) (*model.TableInfo, bool) {
	return g.table, true
}
func (g *getter) ResolveDownstreamSchema(s, t string) (string, string) { return s, t }

type line struct {
	Schema string
	Table  *model.TableInfo
	Binlog string
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func main() {
	logger, err := binlogfile.OpenBinlogger(os.Args[1], binlogfile.SegmentSizeBytes)
	must(err)
	scanner := bufio.NewScanner(os.Stdin)
	scanner.Buffer(make([]byte, 1<<20), 1<<26)
	for scanner.Scan() {
		var l line
		must(json.Unmarshal(scanner.Bytes(), &l))
		raw, err := base64.StdEncoding.DecodeString(l.Binlog)
		must(err)
		var binlog tipb.Binlog
		must(binlog.Unmarshal(raw))
		var value tipb.PrewriteValue
		must(value.Unmarshal(binlog.PrewriteValue))
		made, err := translator.TiBinlogToPbBinlog(&getter{l.Schema, l.Table}, l.Schema, "", &binlog, &value)
		must(err)
		data, err := made.Marshal()
		must(err)
		_, err = logger.WriteTail(&tipb.Entity{Payload: data})
		must(err)
	}
	must(logger.Close())
	fmt.Println("done")
}
