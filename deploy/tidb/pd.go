package main

import (
	"context"
	"net/http"
	"strings"
	"sync"

	"github.com/pingcap/kvproto/pkg/metapb"
	"github.com/pingcap/kvproto/pkg/pdpb"
	"github.com/pingcap/tidb/store/mockstore/unistore/tikv"
	pdclient "github.com/tikv/pd/client"
)

// service answers what a TiDB asks of a PD, and what else asks for timestamps, regions and stores.
type service struct {
	pdpb.UnimplementedPDServer
	clusterID uint64
	url       string
	cluster   *tikv.MockPD
	regions   *tikv.MockRegionManager

	mu                sync.Mutex
	serviceSafePoints map[string]uint64
	externalTimestamp uint64
}

func (s *service) header() *pdpb.ResponseHeader {
	return &pdpb.ResponseHeader{ClusterId: s.clusterID}
}

func (s *service) GetMembers(context.Context, *pdpb.GetMembersRequest) (*pdpb.GetMembersResponse, error) {
	one := &pdpb.Member{Name: "pd", MemberId: 1, ClientUrls: []string{s.url}}
	return &pdpb.GetMembersResponse{
		Header: s.header(), Members: []*pdpb.Member{one}, Leader: one, EtcdLeader: one,
	}, nil
}

func (s *service) Tso(stream pdpb.PD_TsoServer) error {
	for {
		asked, err := stream.Recv()
		if err != nil {
			return nil // The caller hung up.
		}
		physical, logical := s.timestamps(int64(asked.Count))
		if err := stream.Send(&pdpb.TsoResponse{
			Header: s.header(), Count: asked.Count,
			Timestamp: &pdpb.Timestamp{Physical: physical, Logical: logical},
		}); err != nil {
			return err
		}
	}
}

// timestamps takes so many of the store's own clock, all of one millisecond, and returns the last of them.
func (s *service) timestamps(count int64) (int64, int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	firstPhysical, firstLogical := tikv.GetTS()
	for taken := int64(1); taken < count; taken++ {
		physical, logical := tikv.GetTS()
		if physical != firstPhysical || logical != firstLogical+taken {
			firstPhysical, firstLogical, taken = physical, logical, 0
		}
	}
	return firstPhysical, firstLogical + count - 1
}

func (s *service) region(found *pdclient.Region, err error) (*pdpb.GetRegionResponse, error) {
	if err != nil {
		return nil, err
	}
	reply := &pdpb.GetRegionResponse{Header: s.header()}
	if found != nil {
		reply.Region, reply.Leader = found.Meta, found.Leader
	}
	return reply, nil
}

func (s *service) GetRegion(ctx context.Context, asked *pdpb.GetRegionRequest) (*pdpb.GetRegionResponse, error) {
	return s.region(s.cluster.GetRegion(ctx, asked.RegionKey))
}

func (s *service) GetPrevRegion(ctx context.Context, asked *pdpb.GetRegionRequest) (*pdpb.GetRegionResponse, error) {
	return s.region(s.cluster.GetPrevRegion(ctx, asked.RegionKey))
}

func (s *service) GetRegionByID(
	ctx context.Context, asked *pdpb.GetRegionByIDRequest,
) (*pdpb.GetRegionResponse, error) {
	return s.region(s.cluster.GetRegionByID(ctx, asked.RegionId))
}

func (s *service) ScanRegions(
	ctx context.Context, asked *pdpb.ScanRegionsRequest,
) (*pdpb.ScanRegionsResponse, error) {
	found, err := s.cluster.ScanRegions(ctx, asked.StartKey, asked.EndKey, int(asked.Limit))
	if err != nil {
		return nil, err
	}
	reply := &pdpb.ScanRegionsResponse{Header: s.header()}
	for _, region := range found {
		reply.RegionMetas = append(reply.RegionMetas, region.Meta)
		reply.Leaders = append(reply.Leaders, region.Leader)
		reply.Regions = append(reply.Regions, &pdpb.Region{Region: region.Meta, Leader: region.Leader})
	}
	return reply, nil
}

func (s *service) GetStore(ctx context.Context, asked *pdpb.GetStoreRequest) (*pdpb.GetStoreResponse, error) {
	store, err := s.cluster.GetStore(ctx, asked.StoreId)
	return &pdpb.GetStoreResponse{Header: s.header(), Store: store}, err
}

func (s *service) GetAllStores(
	ctx context.Context, _ *pdpb.GetAllStoresRequest,
) (*pdpb.GetAllStoresResponse, error) {
	stores, err := s.cluster.GetAllStores(ctx)
	return &pdpb.GetAllStoresResponse{Header: s.header(), Stores: stores}, err
}

func (s *service) GetClusterConfig(
	context.Context, *pdpb.GetClusterConfigRequest,
) (*pdpb.GetClusterConfigResponse, error) {
	cluster := &metapb.Cluster{Id: s.clusterID, MaxPeerCount: 1}
	return &pdpb.GetClusterConfigResponse{Header: s.header(), Cluster: cluster}, nil
}

func (s *service) AllocID(context.Context, *pdpb.AllocIDRequest) (*pdpb.AllocIDResponse, error) {
	return &pdpb.AllocIDResponse{Header: s.header(), Id: s.regions.AllocID()}, nil
}

func (s *service) GetGCSafePoint(
	ctx context.Context, _ *pdpb.GetGCSafePointRequest,
) (*pdpb.GetGCSafePointResponse, error) {
	safePoint, err := s.cluster.GetGCSafePoint(ctx)
	return &pdpb.GetGCSafePointResponse{Header: s.header(), SafePoint: safePoint}, err
}

func (s *service) UpdateGCSafePoint(
	ctx context.Context, asked *pdpb.UpdateGCSafePointRequest,
) (*pdpb.UpdateGCSafePointResponse, error) {
	safePoint, err := s.cluster.UpdateGCSafePoint(ctx, asked.SafePoint)
	return &pdpb.UpdateGCSafePointResponse{Header: s.header(), NewSafePoint: safePoint}, err
}

func (s *service) UpdateServiceGCSafePoint(
	_ context.Context, asked *pdpb.UpdateServiceGCSafePointRequest,
) (*pdpb.UpdateServiceGCSafePointResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	name := string(asked.ServiceId)
	if asked.TTL <= 0 {
		delete(s.serviceSafePoints, name)
	} else if asked.SafePoint > s.serviceSafePoints[name] {
		s.serviceSafePoints[name] = asked.SafePoint
	}
	smallest := asked.SafePoint
	for _, safePoint := range s.serviceSafePoints {
		if safePoint < smallest {
			smallest = safePoint
		}
	}
	return &pdpb.UpdateServiceGCSafePointResponse{
		Header: s.header(), ServiceId: asked.ServiceId, TTL: asked.TTL, MinSafePoint: smallest,
	}, nil
}

// TiDB asks for it whenever a session lists its variables.
func (s *service) GetExternalTimestamp(
	context.Context, *pdpb.GetExternalTimestampRequest,
) (*pdpb.GetExternalTimestampResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return &pdpb.GetExternalTimestampResponse{Header: s.header(), Timestamp: s.externalTimestamp}, nil
}

func (s *service) SetExternalTimestamp(
	_ context.Context, asked *pdpb.SetExternalTimestampRequest,
) (*pdpb.SetExternalTimestampResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.externalTimestamp = asked.Timestamp
	return &pdpb.SetExternalTimestampResponse{Header: s.header()}, nil
}

func (s *service) ScatterRegion(
	context.Context, *pdpb.ScatterRegionRequest,
) (*pdpb.ScatterRegionResponse, error) {
	return &pdpb.ScatterRegionResponse{Header: s.header(), FinishedPercentage: 100}, nil
}

func (s *service) GetOperator(
	_ context.Context, asked *pdpb.GetOperatorRequest,
) (*pdpb.GetOperatorResponse, error) {
	done := pdpb.OperatorStatus_SUCCESS
	return &pdpb.GetOperatorResponse{Header: s.header(), RegionId: asked.RegionId, Status: done}, nil
}

func (s *service) LoadGlobalConfig(
	context.Context, *pdpb.LoadGlobalConfigRequest,
) (*pdpb.LoadGlobalConfigResponse, error) {
	return &pdpb.LoadGlobalConfigResponse{}, nil
}

func (s *service) StoreGlobalConfig(
	context.Context, *pdpb.StoreGlobalConfigRequest,
) (*pdpb.StoreGlobalConfigResponse, error) {
	return &pdpb.StoreGlobalConfigResponse{}, nil
}

func (s *service) WatchGlobalConfig(
	_ *pdpb.WatchGlobalConfigRequest, stream pdpb.PD_WatchGlobalConfigServer,
) error {
	<-stream.Context().Done() // Nothing in it ever changes.
	return nil
}

// answerPage answers what is asked of PD's pages, which is rules of placement and labels, and where TiFlash is: there
// is none of that, and a rule that is set is forgotten.
func (s *service) answerPage(page http.ResponseWriter, asked *http.Request) {
	page.Header().Set("Content-Type", "application/json")
	answer := ""
	if asked.Method == http.MethodGet {
		answer = "{}"
		if strings.Contains(asked.URL.Path, "/rules") {
			answer = "[]"
		}
	}
	_, _ = page.Write([]byte(answer))
}
