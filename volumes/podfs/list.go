package podfs

import (
	"fmt"
	"os"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/kube/pluginname"
	"github.com/nodelet/nodelet/kube/poddir"
)

// List returns the volumes of a pod that are on disk, including those of plugins that other packages own. Image volumes
// leave nothing there, hostPath volumes nothing but the bind mounts of their subPaths, and local block volumes a link,
// or a mark that reserves them.
func (d *PodDirs) List(uid types.UID) ([]OnDisk, error) {
	var found []OnDisk
	err := d.inPod(uid, func(pod *os.File) error {
		err := eachDir(pod, poddir.Volumes, func(_, plugin *os.File, pluginName string) error {
			names, err := plugin.Readdirnames(-1)
			for _, name := range names {
				found = append(found, OnDisk{Plugin: pluginname.FromDirectory(pluginName), Name: name})
			}
			return err
		})
		if err != nil {
			return err
		}
		marks, err := namesIn(pod, poddir.Of(poddir.Plugins, pluginname.Local, ""))
		if err != nil {
			return err
		}
		links, err := namesIn(pod, deviceLinks)
		if err != nil {
			return err
		}
		for _, name := range append(marks, links...) {
			if on := (OnDisk{pluginname.Local, name}); !slices.Contains(found, on) {
				found = append(found, on)
			}
		}
		subpaths, err := namesIn(pod, poddir.Subpaths)
		for _, name := range subpaths {
			if !slices.ContainsFunc(found, func(o OnDisk) bool { return o.Name == name }) {
				found = append(found, OnDisk{Plugin: pluginname.HostPath, Name: name})
			}
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list volumes: %w", err)
	}
	return found, nil
}

// namesIn returns the names in the directory at path. A missing directory has none.
func namesIn(parent *os.File, path string) (names []string, err error) {
	err = inDir(parent, path, func(dir *os.File) (err error) {
		names, err = dir.Readdirnames(-1)
		return err
	})
	return names, err
}

// eachDir opens every entry of the directory at path, all of which must be directories, and calls do with both. A
// missing directory has no entries.
func eachDir(parent *os.File, path string, do func(dir, sub *os.File, name string) error) error {
	return inDir(parent, path, func(dir *os.File) error {
		names, err := dir.Readdirnames(-1)
		if err != nil {
			return err
		}
		for _, name := range names {
			sub, err := openDir(dir, name)
			if err != nil {
				return err
			}
			err = do(dir, sub, name)
			sub.Close()
			if err != nil {
				return err
			}
		}
		return nil
	})
}
