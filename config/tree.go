package config

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
	"k8s.io/utils/ptr"

	"github.com/nodelet/nodelet/internal/strict"
)

// pathFields are the fields with the path of a file.
var pathFields = []string{
	"staticPodPath", "authentication.x509.clientCAFile", "tlsCertFile", "tlsPrivateKeyFile", "resolvConf",
	"volumePluginDir",
	"podLogsDir",
}

// readTrees reads file and then each *.conf below dir in lexical order (either may be empty), and merges them as JSON
// merge patches (RFC 7386): objects are merged, other values are replaced, null removes.
func readTrees(file, dir string) (map[string]any, error) {
	merged := map[string]any{}
	var files []string
	if file != "" {
		files = append(files, file)
	}
	if dir != "" {
		dropIns, err := dropInFiles(dir)
		if err != nil {
			return nil, fmt.Errorf("read the drop-in directory of --config-dir: %w", err)
		}
		files = append(files, dropIns...)
	}
	for i, f := range files {
		tree, err := readTree(f)
		switch {
		case errors.Is(err, fs.ErrNotExist) && f == file:
			return nil, fmt.Errorf("%w; on a node of kubeadm, kubeadm init or kubeadm join writes it", err)
		case err != nil:
			return nil, err
		}
		if i == 0 && f == file {
			dir, err := filepath.Abs(filepath.Dir(f))
			if err != nil {
				return nil, fmt.Errorf("find the directory of %s: %w", f, err)
			}
			resolvePaths(tree, dir)
			if err := fillThresholds(tree); err != nil {
				return nil, prefixEach(f, err)
			}
		}
		mergePatch(merged, tree)
	}
	return merged, nil
}

// fillThresholds adds the defaults to evictionHard if it is not set, or if mergeDefaultEvictionSettings is. As in the
// kubelet they are those of the main file, which alone says whether they are merged: a drop-in file that names some
// signals replaces their thresholds and leaves those of all others.
func fillThresholds(tree map[string]any) error {
	c, err := decode(tree)
	if err != nil || c.EvictionHard != nil && !ptr.Deref(c.MergeDefaultEvictionSettings, false) {
		return err
	}
	all := map[string]any{}
	for signal, threshold := range defaultEvictionHard {
		all[signal] = threshold
	}
	hard, _ := tree["evictionHard"].(map[string]any)
	maps.Copy(all, hard)
	tree["evictionHard"] = all
	return nil
}

// dropInFiles returns the *.conf files below dir, which may be a symbolic link.
func dropInFiles(dir string) ([]string, error) {
	var files []string
	err := filepath.WalkDir(dir+"/", func(path string, d fs.DirEntry, err error) error { // the slash follows a link
		if err == nil && !d.IsDir() && filepath.Ext(path) == ".conf" {
			files = append(files, path)
		}
		return err
	})
	return files, err
}

// readTree reads and checks one file. Each error begins with the name of the file.
func readTree(file string) (map[string]any, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, fmt.Errorf("read the kubelet's configuration: %w", err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, strict.MaxSize+1))
	switch {
	case errors.Is(err, unix.EISDIR):
		return nil, fmt.Errorf("read the kubelet's configuration: %s is a directory; "+
			"name the file in it, or use --config-dir for a directory of *.conf files", file)
	case err != nil:
		return nil, fmt.Errorf("read the kubelet's configuration: %w", err)
	}
	tree, err := strict.Parse(text, KubeletConfiguration{}, Kind, APIVersion)
	if err = withoutEmpty(err); err != nil {
		return nil, prefixEach(file, err)
	}
	return tree, nil
}

// withoutEmpty leaves out the unknown fields with empty values: kubeadm writes all fields of its own version, also
// those that have no value, and it may be newer.
func withoutEmpty(err error) error {
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return err
	}
	return errors.Join(slices.DeleteFunc(joined.Unwrap(), func(err error) bool {
		field, ok := errors.AsType[*strict.Error](err)
		return ok && field.Empty
	})...)
}

// mergePatch applies patch to base.
func mergePatch(base, patch map[string]any) {
	for k, v := range patch {
		object, isObject := v.(map[string]any)
		switch {
		case v == nil:
			delete(base, k)
		case isObject:
			below, ok := base[k].(map[string]any)
			if !ok {
				below = map[string]any{}
			}
			mergePatch(below, object)
			base[k] = below
		default:
			base[k] = v
		}
	}
}

// resolvePaths makes the relative paths of a tree absolute: they refer to dir. Those of the main file refer to its
// directory. As in the kubelet, those of drop-in files and flags refer to the working directory.
func resolvePaths(tree map[string]any, dir string) {
	for _, path := range pathFields {
		parent, name := descend(tree, path)
		if s, ok := parent[name].(string); ok {
			parent[name] = below(dir, s)
		}
	}
}

// below returns the absolute path of a relative one that refers to dir. Without dir, paths stay as they are.
func below(dir, path string) string {
	if dir == "" || path == "" || filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(dir, path)
}

func prefixEach(file string, err error) error {
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return fmt.Errorf("%s: %w", file, err)
	}
	var all []error
	for _, e := range joined.Unwrap() {
		all = append(all, fmt.Errorf("%s: %w", file, e))
	}
	return errors.Join(all...)
}
