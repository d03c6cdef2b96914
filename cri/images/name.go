package images

import (
	_ "crypto/sha256" // digests in image names
	_ "crypto/sha512" // digests in image names

	"github.com/distribution/reference"
)

// name is an image name as a pod gives it, understood.
type name struct {
	// pull is what the runtime is asked for: the name as given, with the tag latest where it has neither tag nor digest. A
	// short name stays short: the runtime knows its own default registry.
	pull string
	// repository is registry and path, both complete, without tag and digest: what credentials are looked up by.
	repository string
}

// parseName understands an image name. Its error is a *Reason.
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
