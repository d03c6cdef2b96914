package fake

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	pb "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// RemoteImage is an image in the scripted registry.
type RemoteImage struct {
	// Name is what it is pulled by, with a tag or a digest.
	Name string
	// ID is the image's; made from Name where empty.
	ID   string
	Size uint64
	// UID or Username is the image's user.
	UID      *int64
	Username string
	// Pinned says that the runtime wants to keep the image, as containerd with that of sandboxes.
	Pinned bool
	// Logins, if any, are the names and passwords of those who may pull; others are denied.
	Logins map[string]string
	// Takes is how long a pull works; Err is what it then answers.
	Takes time.Duration
	Err   error
}

// imageStore has the images on the node and in the scripted registry, and serves the image service.
type imageStore struct {
	// Streams makes lists available as streams (KEP-5825); BreakStreams breaks them after the first item.
	Streams, BreakStreams bool

	pb.UnimplementedImageServiceServer
	lock     sync.Mutex
	images   map[string]*pb.Image
	registry map[string]*RemoteImage
}

// Publish puts an image into the registry or changes it.
func (r *imageStore) Publish(img RemoteImage) {
	r.lock.Lock()
	defer r.lock.Unlock()
	r.registry[qualified(img.Name)] = &img
}

// AddImage puts an image on the node, as if pulled.
func (r *imageStore) AddImage(img RemoteImage) {
	r.lock.Lock()
	defer r.lock.Unlock()
	r.store(&img)
}

// qualified is the full name: the default registry and tag are filled in.
func qualified(name string) string {
	first, _, slash := strings.Cut(name, "/")
	switch {
	case !slash:
		name = "docker.io/library/" + name
	case !strings.ContainsAny(first, ".:") && first != "localhost":
		name = "docker.io/" + name
	}
	if last := name[strings.LastIndex(name, "/"):]; !strings.ContainsAny(last, ":@") {
		name += ":latest"
	}
	return name
}

// store enters an image. r.lock is held.
func (r *imageStore) store(img *RemoteImage) *pb.Image {
	name := qualified(img.Name)
	id := img.ID
	if id == "" {
		id = "sha256:" + strings.NewReplacer("/", "-", ":", "-", "@", "-").Replace(name)
	}
	have := r.images[id]
	if have == nil {
		have = &pb.Image{Id: id, Size: max(img.Size, 1), Username: img.Username, Pinned: img.Pinned}
		if img.UID != nil {
			have.Uid = &pb.Int64Value{Value: *img.UID}
		}
		r.images[id] = have
	}
	names := &have.RepoTags
	if strings.Contains(name, "@") {
		names = &have.RepoDigests
	}
	for _, other := range r.images { // a tag that was moved leaves the image that had it
		if other != have {
			other.RepoTags = slices.DeleteFunc(other.RepoTags, func(tag string) bool { return tag == name })
		}
	}
	if !slices.Contains(*names, name) {
		*names = append(*names, name)
	}
	return have
}

// lookup finds an image by ID or name.
func (r *imageStore) lookup(name string) *pb.Image {
	r.lock.Lock()
	defer r.lock.Unlock()
	return r.resolve(name)
}

// resolve does the same with the lock held.
func (r *imageStore) resolve(name string) *pb.Image {
	if img := r.images[name]; img != nil {
		return img
	}
	full := qualified(name)
	for _, img := range r.images {
		if slices.Contains(img.RepoTags, full) || slices.Contains(img.RepoDigests, full) {
			return img
		}
	}
	return nil
}

// imageRef is what a container status names the image by: its digest, where it has one.
func imageRef(img *pb.Image) string {
	if len(img.RepoDigests) > 0 {
		return img.RepoDigests[0]
	}
	return img.Id
}

// PullImage pulls from the scripted registry.
func (r *imageStore) PullImage(ctx context.Context, req *pb.PullImageRequest) (*pb.PullImageResponse, error) {
	name := qualified(req.GetImage().GetImage())
	r.lock.Lock()
	found := r.registry[name]
	r.lock.Unlock()
	if found == nil {
		return nil, status.Errorf(codes.NotFound,
			"failed to pull and unpack image %q: failed to resolve image: %s: not found", name, name)
	}
	img := *found
	if err := work(ctx, img.Takes); err != nil {
		return nil, err
	}
	password, known := img.Logins[req.GetAuth().GetUsername()]
	if len(img.Logins) > 0 && (!known || password != req.GetAuth().GetPassword()) {
		return nil, status.Errorf(codes.Unknown, "failed to pull and unpack image %q: failed to resolve image: pull access "+
			"denied, repository does not exist or may require authorization: authorization failed: "+
			"no basic auth credentials", name)
	}
	if img.Err != nil {
		return nil, img.Err
	}
	r.lock.Lock()
	defer r.lock.Unlock()
	return &pb.PullImageResponse{ImageRef: r.store(&img).Id}, nil
}

// ImageStatus gives an image on the node, none where it is not there.
func (r *imageStore) ImageStatus(_ context.Context, req *pb.ImageStatusRequest) (*pb.ImageStatusResponse, error) {
	r.lock.Lock()
	defer r.lock.Unlock()
	img := r.resolve(req.GetImage().GetImage())
	if img == nil {
		return &pb.ImageStatusResponse{}, nil
	}
	return &pb.ImageStatusResponse{Image: proto.CloneOf(img)}, nil
}

// ListImages lists the images on the node.
func (r *imageStore) ListImages(context.Context, *pb.ListImagesRequest) (*pb.ListImagesResponse, error) {
	r.lock.Lock()
	defer r.lock.Unlock()
	resp := &pb.ListImagesResponse{}
	for _, img := range r.images {
		resp.Images = append(resp.Images, proto.CloneOf(img))
	}
	slices.SortFunc(resp.Images, func(a, b *pb.Image) int { return cmp.Compare(a.Id, b.Id) })
	return resp, nil
}

// RemoveImage removes an image with all its names.
func (r *imageStore) RemoveImage(_ context.Context, req *pb.RemoveImageRequest) (*pb.RemoveImageResponse, error) {
	r.lock.Lock()
	defer r.lock.Unlock()
	name := req.GetImage().GetImage()
	if img := r.resolve(name); img != nil && removes(img, name) {
		delete(r.images, img.Id)
	}
	return &pb.RemoveImageResponse{}, nil
}

// removes reports whether a name is enough to remove an image. With CRI-O the ID of an OCI artifact, which is its
// digest, is not, nor is what it calls one without a name.
func removes(img *pb.Image, name string) bool {
	digest := "@sha256:" + img.Id
	artifact := slices.ContainsFunc(img.RepoDigests, func(n string) bool { return strings.HasSuffix(n, digest) })
	return !artifact || name != img.Id && name != qualified("unknown"+digest)
}

// ImageFsInfo returns the usage of one file system that holds the images.
func (r *imageStore) ImageFsInfo(context.Context, *pb.ImageFsInfoRequest) (*pb.ImageFsInfoResponse, error) {
	r.lock.Lock()
	defer r.lock.Unlock()
	var used uint64
	for _, img := range r.images {
		used += img.Size
	}
	return &pb.ImageFsInfoResponse{ImageFilesystems: []*pb.FilesystemUsage{{
		Timestamp: time.Now().UnixNano(), FsId: &pb.FilesystemIdentifier{Mountpoint: "/var/lib/containerd"},
		UsedBytes: &pb.UInt64Value{Value: used},
	}}}, nil
}
