package testbed

import (
	"context"
	"fmt"
	"os"
	"strings"
)

// clusterRevision is the prefix of the archives' names. Increase it when a recipe below changes.
const clusterRevision = "kubeadm1"

// etcdRevision is the suffix that Kubernetes adds to etcd's version in the name of its image.
const etcdRevision = "-0"

// ClusterImages builds the missing images of kubeadm's control plane, from the programs of the testbed and with the
// names that kubeadm uses, and returns their archives. It leaves out kube-proxy and CoreDNS, because a cluster can
// run without them.
func (c *Cache) ClusterImages(ctx context.Context) ([]string, error) {
	b := imageBuilder{c}
	version, err := c.KubernetesVersion()
	if err != nil {
		return nil, err
	}
	etcd, err := b.etcd()
	if err != nil {
		return nil, err
	}
	pause, err := b.forSuite(clusterRevision+"-pause", b.pauseImage, "pause") // the suite's version is kubeadm's
	if err != nil {
		return nil, err
	}
	recipes := []recipe{pause, etcd}
	for _, name := range []string{"kube-apiserver", "kube-controller-manager", "kube-scheduler"} {
		archive := clusterRevision + "-" + name + "-" + version
		recipes = append(recipes, recipe{archive, b.programImage("kubernetes", name, "registry.k8s.io/"+name+":"+version)})
	}
	return c.archives(ctx, recipes)
}

// etcd returns the recipe of etcd's image. The suite uses the same version.
func (b imageBuilder) etcd() (recipe, error) {
	version, err := moduleVersion("etcd")
	ref := "registry.k8s.io/etcd:" + strings.TrimPrefix(version, "v") + etcdRevision
	return recipe{clusterRevision + "-etcd-" + version, b.programImage("etcd", "etcd", ref)}, err
}

// KubernetesVersion returns the version of the Kubernetes programs that the testbed builds, for example "v1.36.3".
func (c *Cache) KubernetesVersion() (string, error) {
	return moduleVersion("kubernetes")
}

// programImage returns what builds an image with one static program of a module.
func (b imageBuilder) programImage(module, program string, refs ...string) func(context.Context) (image, error) {
	return func(ctx context.Context) (image, error) {
		path, err := b.cache.Program(ctx, module, program)
		if err != nil {
			return image{}, err
		}
		body, err := os.ReadFile(path)
		if err != nil {
			return image{}, fmt.Errorf("read %s: %w", program, err)
		}
		return image{
			refs:       refs,
			files:      []imageFile{{name: "/usr/local/bin/" + program, mode: 0o755, body: body}},
			entrypoint: []string{program},
			env:        []string{imagePath},
		}, nil
	}
}
