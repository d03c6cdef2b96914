package fake

import (
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	pb "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// send sends each item of a list in a message of its own. Without Streams it answers as a runtime that does not have
// the call; with BreakStreams it fails after the first item.
func send[Item, Part any](r *imageStore, all []Item, s grpc.ServerStreamingServer[Part], part func(Item) *Part) error {
	if !r.Streams {
		return status.Error(codes.Unimplemented, "method not implemented")
	}
	for i, item := range all {
		if r.BreakStreams && i > 0 {
			return status.Error(codes.Internal, "the stream is broken")
		}
		if err := s.Send(part(item)); err != nil {
			return err
		}
	}
	return nil
}

// StreamPodSandboxes is ListPodSandbox as a stream.
func (r *Runtime) StreamPodSandboxes(req *pb.StreamPodSandboxesRequest,
	s grpc.ServerStreamingServer[pb.StreamPodSandboxesResponse]) error {
	resp, err := r.ListPodSandbox(s.Context(), &pb.ListPodSandboxRequest{Filter: req.Filter})
	if err != nil {
		return err
	}
	return send(&r.imageStore, resp.Items, s, func(one *pb.PodSandbox) *pb.StreamPodSandboxesResponse {
		return &pb.StreamPodSandboxesResponse{PodSandboxes: []*pb.PodSandbox{one}}
	})
}

// StreamContainers is ListContainers as a stream.
func (r *Runtime) StreamContainers(req *pb.StreamContainersRequest,
	s grpc.ServerStreamingServer[pb.StreamContainersResponse]) error {
	resp, err := r.ListContainers(s.Context(), &pb.ListContainersRequest{Filter: req.Filter})
	if err != nil {
		return err
	}
	return send(&r.imageStore, resp.Containers, s, func(one *pb.Container) *pb.StreamContainersResponse {
		return &pb.StreamContainersResponse{Containers: []*pb.Container{one}}
	})
}

// StreamContainerStats is ListContainerStats as a stream.
func (r *Runtime) StreamContainerStats(req *pb.StreamContainerStatsRequest,
	s grpc.ServerStreamingServer[pb.StreamContainerStatsResponse]) error {
	resp, err := r.ListContainerStats(s.Context(), &pb.ListContainerStatsRequest{Filter: req.Filter})
	if err != nil {
		return err
	}
	return send(&r.imageStore, resp.Stats, s, func(one *pb.ContainerStats) *pb.StreamContainerStatsResponse {
		return &pb.StreamContainerStatsResponse{ContainerStats: []*pb.ContainerStats{one}}
	})
}

// StreamImages is ListImages as a stream.
func (r *imageStore) StreamImages(_ *pb.StreamImagesRequest,
	s grpc.ServerStreamingServer[pb.StreamImagesResponse]) error {
	resp, err := r.ListImages(s.Context(), &pb.ListImagesRequest{})
	if err != nil {
		return err
	}
	return send(r, resp.Images, s, func(one *pb.Image) *pb.StreamImagesResponse {
		return &pb.StreamImagesResponse{Images: []*pb.Image{one}}
	})
}
