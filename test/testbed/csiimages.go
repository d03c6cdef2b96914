package testbed

import "context"

// csiRevision is the prefix of the archives' names. Increase it when a recipe below changes.
const csiRevision = "csi1"

// CSIImages builds the missing images for the specs of Kubernetes' own test suite that run a mock CSI driver in pods,
// and returns their archives. The driver comes from the suite. The sidecars come from the CSI project: they have the
// tags that the suite uses, but the versions that are available as Go modules. The registrar is not available as a
// module; the testbed has its own.
func (c *Cache) CSIImages(ctx context.Context) ([]string, error) {
	sidecar := func(program, as string) recipe {
		return recipe{csiRevision + "-" + program, c.sidecar("csi-sidecars", program, as)}
	}
	return c.archives(ctx, []recipe{
		{csiRevision + "-busybox", c.csiBusybox},
		{csiRevision + "-csi-attacher", c.sidecar("external-attacher", "csi-attacher", "csi-attacher:v4.11.0")},
		sidecar("csi-provisioner", "csi-provisioner:v6.1.1"),
		sidecar("csi-resizer", "csi-resizer:v2.1.0"),
		sidecar("mock-driver", "hostpathplugin:v1.17.1"),
		sidecar("registrar", "csi-node-driver-registrar:v2.16.0"),
	})
}

func (c *Cache) sidecar(module, program, as string) func(context.Context) (image, error) {
	return c.programImage(module, program, "sig-storage/"+as)
}

// csiBusybox is the suite's busybox with the name of another version, in which the driver's specs inspect directories
// of the node.
func (c *Cache) csiBusybox(ctx context.Context) (image, error) {
	img, err := c.suiteBusybox(ctx)
	img.refs = []string{suitePrefix + "busybox:1.36.1-1"}
	return img, err
}
