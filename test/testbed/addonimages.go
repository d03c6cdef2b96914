package testbed

import "context"

// The images of cluster add-ons. The tag of CoreDNS is the one that kubeadm of the pinned version uses.
const (
	coreDNSImage = "registry.k8s.io/coredns/coredns:v1.14.6"
	flannelImage = "ghcr.io/flannel-io/flannel:v0.26.7"
)

// AddonImages builds the missing images of kube-proxy, CoreDNS and Flannel with the names in their manifests, and
// returns their archives.
func (c *Cache) AddonImages(ctx context.Context) ([]string, error) {
	b := imageBuilder{c}
	version, err := c.KubernetesVersion()
	if err != nil {
		return nil, err
	}
	return c.archives(ctx, []recipe{
		{clusterRevision + "-coredns", b.programImage("coredns", "cluster-dns", coreDNSImage)},
		{clusterRevision + "-kube-proxy-" + version,
			b.onDebian(b.programImage("kubernetes", "kube-proxy", "registry.k8s.io/kube-proxy:"+version))},
		{clusterRevision + "-flannel", b.onDebian(b.programImage("flannel", "flannel", flannelImage))},
	})
}

// onDebian adds a Debian root file system to an image, for a program that calls others: iptables, ip, sh.
func (b imageBuilder) onDebian(build func(context.Context) (image, error)) func(context.Context) (image, error) {
	return func(ctx context.Context) (image, error) {
		root, err := b.debianRoot(ctx)
		if err != nil {
			return image{}, err
		}
		img, err := build(ctx)
		img.files = append(root, img.files...)
		return img, err
	}
}
