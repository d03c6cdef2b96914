package testbed

import "context"

// csiRevision is the prefix of the archives' names. Increase it when a recipe below changes.
const csiRevision = "csi2"

// CSIImages builds the missing images for the specs of Kubernetes' own test suite that run a mock CSI driver in pods,
// and returns their archives. The driver comes from the suite. The sidecars come from the CSI project: they have the
// tags that the suite uses, but the versions that are available as Go modules. The registrar is not available as a
// module; the testbed has its own.
func (c *Cache) CSIImages(ctx context.Context) ([]string, error) {
	b := imageBuilder{c}
	var recipes []recipe
	for _, r := range []struct{ module, program, image string }{
		{"external-attacher", "csi-attacher", "csi-attacher"},
		{"csi-sidecars", "csi-provisioner", "csi-provisioner"},
		{"csi-sidecars", "csi-resizer", "csi-resizer"},
		{"csi-sidecars", "mock-driver", "hostpathplugin"},
		{"csi-sidecars", "registrar", "csi-node-driver-registrar"},
	} {
		next, err := b.forSuite(csiRevision+"-"+r.program, b.programImage(r.module, r.program), r.image)
		if err != nil {
			return nil, err
		}
		recipes = append(recipes, next)
	}
	return c.archives(ctx, recipes)
}
