package images

import (
	_ "crypto/sha256" // digests in image names
	_ "crypto/sha512" // digests in image names

	"github.com/distribution/reference"
)

// name is a parsed image name.
type name struct {
	// pull is the name for the runtime: as the pod gives it, with the tag latest if it has neither tag nor digest. A short
	// name stays short: the runtime has its own default registry.
	pull string
	// repository is registry and path, both complete, without tag and digest: the key for credentials.
	repository string
}

// parseName parses an image name. Its error is a *Reason.
func parseName(image string) (name, error) {
	named, err := reference.ParseNormalizedNamed(image)
	if err != nil {
		return name{}, invalidName(image, err)
	}
	n := name{pull: image, repository: named.Name()}
	_, tagged := named.(reference.Tagged)
	_, digested := named.(reference.Digested)
	if !tagged && !digested {
		n.pull += ":latest"
	}
	return n, nil
}
