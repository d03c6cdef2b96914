package testbed

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// The suite names its images in a Go file, and some more in manifests.
var (
	// suiteImage matches an image of the Go file: registry, name and tag.
	suiteImage = regexp.MustCompile(`Config\{list\.(PromoterE2eRegistry|GcRegistry), "([^"]+)", "([^"]+)"\}`)
	// suiteManifestImage matches the reference of an image in a manifest.
	suiteManifestImage = regexp.MustCompile(`image: "?(registry\.k8s\.io/[\w./-]+:[\w.-]+)"?\n`)
)

// suiteRegistries are the registries of suiteImage.
var suiteRegistries = map[string]string{
	"PromoterE2eRegistry": "registry.k8s.io/e2e-test-images/",
	"GcRegistry":          "registry.k8s.io/",
}

// forSuite returns a recipe for an image that gets the references by which the suite knows the named images as well.
// The archive's name contains the version of the suite.
func (b imageBuilder) forSuite(name string, build func(context.Context) (image, error),
	images ...string) (recipe, error) {
	version, err := moduleVersion("suite")
	return recipe{name + "-" + version, func(ctx context.Context) (image, error) {
		img, err := build(ctx)
		if err != nil {
			return image{}, err
		}
		more, err := b.suiteReferences(ctx, images)
		img.refs, img.apart = append(img.refs, more...), true // specs compare the names of containers' images
		return img, err
	}}, err
}

// suiteReferences returns the references by which the suite knows the named images. It may use several versions of one.
func (b imageBuilder) suiteReferences(ctx context.Context, names []string) (references []string, err error) {
	source, err := b.cache.ModuleSource(ctx, "suite")
	if err != nil {
		return nil, err
	}
	all, err := allSuiteReferences(source)
	if err != nil {
		return nil, fmt.Errorf("read the names of the suite's images: %w", err)
	}
	for _, name := range names {
		of := slices.DeleteFunc(slices.Clone(all), func(ref string) bool {
			last, _, _ := strings.Cut(path.Base(ref), ":")
			return last != name
		})
		if len(of) == 0 {
			return nil, fmt.Errorf("find the suite's image %s: it is not among %q", name, all)
		}
		references = append(references, of...)
	}
	return references, nil
}

// allSuiteReferences reads the references of all images in the suite's source tree, sorted.
func allSuiteReferences(source string) (references []string, err error) {
	list, err := os.ReadFile(filepath.Join(source, "test/utils/image/manifest.go"))
	for _, m := range suiteImage.FindAllStringSubmatch(string(list), -1) {
		references = append(references, suiteRegistries[m[1]]+m[2]+":"+m[3])
	}
	manifests := filepath.Join(source, "test/e2e/testing-manifests")
	walkErr := filepath.WalkDir(manifests, func(file string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := os.ReadFile(file)
		for _, m := range suiteManifestImage.FindAllStringSubmatch(string(text), -1) {
			references = append(references, m[1])
		}
		return err
	})
	slices.Sort(references)
	return slices.Compact(references), errors.Join(err, walkErr)
}
