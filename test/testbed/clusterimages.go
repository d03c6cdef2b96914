package testbed

import (
	"context"
	"fmt"
	"os"
	"strings"
)

// clusterRevision begins the archives' names: raise it when what is built below changes.
const clusterRevision = "kubeadm1"

// etcdRevision is what Kubernetes appends to etcd's version in the name of its image.
const etcdRevision = "-0"

// ClusterImages builds what is missing of the images that kubeadm runs a control plane from, made here of the programs of the
// testbed under the names that kubeadm asks for: without kube-proxy and CoreDNS, which a cluster can do without.
func (c *Cache) ClusterImages(ctx context.Context) ([]string, error) {
	version, err := c.KubernetesVersion(ctx)
	if err != nil {
		return nil, err
	}
	etcd, err := moduleVersion(ctx, "etcd")
	if err != nil {
		return nil, err
	}
	recipes := []recipe{
		{clusterRevision + "-pause", c.suitePause},
		{clusterRevision + "-etcd-" + etcd, c.programImage("etcd", "etcd", "etcd:"+strings.TrimPrefix(etcd, "v")+etcdRevision)},
	}
	for _, name := range []string{"kube-apiserver", "kube-controller-manager", "kube-scheduler"} {
		recipes = append(recipes, recipe{clusterRevision + "-" + name + "-" + version, c.programImage("kubernetes", name, name+":"+version)})
	}
	return c.archives(ctx, recipes)
}

// KubernetesVersion is that of the programs which the testbed builds, for example "v1.36.3".
func (c *Cache) KubernetesVersion(ctx context.Context) (string, error) {
	return moduleVersion(ctx, "kubernetes")
}

// programImage is a recipe for an image that holds one static program of a module.
func (c *Cache) programImage(module, program, ref string) func(context.Context) (image, error) {
	return func(ctx context.Context) (image, error) {
		path, err := c.Program(ctx, module, program)
		if err != nil {
			return image{}, err
		}
		body, err := os.ReadFile(path)
		if err != nil {
			return image{}, fmt.Errorf("read %s: %w", program, err)
		}
		return image{
			refs:       []string{"registry.k8s.io/" + ref},
			files:      []imageFile{{name: "/usr/local/bin/" + program, mode: 0o755, body: body}},
			entrypoint: []string{program},
			env:        []string{imagePath},
		}, nil
	}
}
