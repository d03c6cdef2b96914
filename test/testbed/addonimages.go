package testbed

import "context"

// The images of what runs in a cluster beside its control plane. CoreDNS' tag is the one that kubeadm of the pinned version names.
const (
	coreDNSImage = "coredns/coredns:v1.14.2"
	flannelImage = "ghcr.io/flannel-io/flannel:v0.26.7"
)

// AddonImages builds what is missing of the images of kube-proxy, CoreDNS and Flannel, under the names that their manifests ask
// for, and returns their archives.
func (c *Cache) AddonImages(ctx context.Context) ([]string, error) {
	version, err := c.KubernetesVersion(ctx)
	if err != nil {
		return nil, err
	}
	return c.archives(ctx, []recipe{
		{clusterRevision + "-coredns", c.programImage("coredns", "cluster-dns", coreDNSImage)},
		{clusterRevision + "-kube-proxy-" + version, c.onDebian(c.programImage("kubernetes", "kube-proxy", "kube-proxy:"+version))},
		{clusterRevision + "-flannel", c.onDebian(c.flannelImage)},
	})
}

func (c *Cache) flannelImage(ctx context.Context) (image, error) {
	img, err := c.programImage("flannel", "flannel", "")(ctx)
	img.refs = []string{flannelImage}
	return img, err
}

// onDebian lays an image over a distribution, for a program that calls others: iptables, ip, sh.
func (c *Cache) onDebian(build func(context.Context) (image, error)) func(context.Context) (image, error) {
	return func(ctx context.Context) (image, error) {
		root, err := c.debianRoot(ctx)
		if err != nil {
			return image{}, err
		}
		img, err := build(ctx)
		img.files = append(root, img.files...)
		return img, err
	}
}
