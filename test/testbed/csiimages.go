package testbed

import "context"

// csiRevision begins the archives' names: raise it when what is built below changes.
const csiRevision = "csi1"

// CSIImages builds what is missing of the images that the specs of Kubernetes' own test suite with a mock CSI driver run in pods,
// and returns their archives. The driver is the suite's own. The helpers are the CSI project's, under the tags the suite asks for
// and at the version their modules can be had at; the registrar, which is no such module, is a stand-in.
func (c *Cache) CSIImages(ctx context.Context) ([]string, error) {
	helper := func(program, as string) recipe {
		return recipe{csiRevision + "-" + program, c.sidecar("csi-sidecars", program, as)}
	}
	return c.archives(ctx, []recipe{
		{csiRevision + "-busybox", c.csiBusybox},
		{csiRevision + "-csi-attacher", c.sidecar("external-attacher", "csi-attacher", "csi-attacher:v4.11.0")},
		helper("csi-provisioner", "csi-provisioner:v6.1.1"),
		helper("csi-resizer", "csi-resizer:v2.1.0"),
		helper("mock-driver", "hostpathplugin:v1.17.1"),
		helper("registrar", "csi-node-driver-registrar:v2.16.0"),
	})
}

func (c *Cache) sidecar(module, program, as string) func(context.Context) (image, error) {
	return c.programImage(module, program, "sig-storage/"+as)
}

// csiBusybox is another version's name for the suite's busybox, in which the driver's specs look at directories of the node.
func (c *Cache) csiBusybox(ctx context.Context) (image, error) {
	img, err := c.suiteBusybox(ctx)
	img.refs = []string{suitePrefix + "busybox:1.36.1-1"}
	return img, err
}
