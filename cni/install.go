package cni

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/nodelet/nodelet/cni/shim"
	"github.com/nodelet/nodelet/host/atomicfile"
)

// installedFile is nodelet's configuration for the runtime. Runtimes use the first file by name.
const installedFile = "00-nodelet.conflist"

// InstallConfig says where the runtime looks for its network.
type InstallConfig struct {
	// ConfDir is the runtime's directory for configurations, BinDir that for plugins.
	ConfDir, BinDir string
	// Program is the path of the nodelet program.
	Program string
	// The configuration of the plugin has the socket of the agent (Socket), the directory of the records (Dir), and the
	// directories of the real plugins (BinDirs).
	Socket, Dir string
	BinDirs     []string
}

// install makes nodelet the runtime's network plugin. It does not write a file that is up to date, so that the runtime
// does not reload it.
func install(c InstallConfig) error {
	if err := os.MkdirAll(c.BinDir, 0o755); err != nil {
		return fmt.Errorf("make directory for plugins: %w", err)
	}
	link := filepath.Join(c.BinDir, shim.Name)
	if to, err := os.Readlink(link); err != nil || to != c.Program {
		temp := fmt.Sprintf("%s.%d", link, os.Getpid())
		_ = os.Remove(temp)
		if err := errors.Join(os.Symlink(c.Program, temp), os.Rename(temp, link)); err != nil {
			return fmt.Errorf("install nodelet as a network plugin: %w", err)
		}
	}
	if err := os.MkdirAll(c.ConfDir, 0o755); err != nil {
		return fmt.Errorf("make directory for network configurations: %w", err)
	}
	text, err := json.MarshalIndent(installed(c), "", "  ")
	if err != nil {
		return err
	}
	path := filepath.Join(c.ConfDir, installedFile)
	if now, err := os.ReadFile(path); err == nil && string(now) == string(text) {
		return firstOf(c.ConfDir)
	}
	if err := atomicfile.Write(path, text, 0o644); err != nil {
		return fmt.Errorf("install nodelet's network configuration: %w", err)
	}
	return firstOf(c.ConfDir)
}

// KeepInstalled installs, and installs again whenever something in the runtime's directories changes, until ctx ends.
// changed is called with the reason why nodelet cannot be the plugin, nil if it is, whenever that changes.
func KeepInstalled(ctx context.Context, c InstallConfig, log *slog.Logger, changed func(error)) {
	last := ""
	install := func() {
		err := install(c)
		if err != nil {
			err = fmt.Errorf("nodelet cannot provide the pod network: %w", err)
		}
		if text := fmt.Sprint(err); text != last {
			if last = text; err != nil {
				log.Error(text)
			}
			changed(err)
		}
	}
	install()
	watchDirs(ctx, []string{c.ConfDir, c.BinDir}, log, install)
}

// firstOf returns an error if the runtime would use another configuration.
func firstOf(dir string) error {
	files, err := configFiles(dir)
	if err != nil || len(files) == 0 || filepath.Base(files[0]) == installedFile {
		return err
	}
	return fmt.Errorf("the runtime uses %s instead of %s, because it is the first by name: "+
		"remove it, or pass it to nodelet with --cni-conf", files[0], installedFile)
}

// installed returns a configuration of version 1.0.0: for later ones containerd runs STATUS every few seconds. It turns
// off CHECK: CRI-O runs it at its start and gives up the addresses of the sandboxes for which it fails.
func installed(c InstallConfig) map[string]any {
	return map[string]any{
		"cniVersion":   "1.0.0",
		"name":         ownName,
		"disableCheck": true,
		"plugins": []any{map[string]any{
			"type":    shim.Name,
			"socket":  c.Socket,
			"dir":     c.Dir,
			"binDirs": c.BinDirs,
			"capabilities": map[string]bool{
				"portMappings":   true,
				"bandwidth":      true,
				"dns":            true,
				"ipRanges":       true,
				"mac":            true,
				"ips":            true,
				"infinibandGUID": true,
				"deviceID":       true,
				"cgroupPath":     true,
				podAnnotations:   true,
			},
		}},
	}
}

// Uninstall removes the configuration that Install has written, and reports whether there was one. The program stays,
// because sandboxes that it has attached need it for DEL.
func Uninstall(confDir string) (removed bool, err error) {
	path := filepath.Join(confDir, installedFile)
	n, err := readNetwork(path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && n.Plugins[0].Network.Type != shim.Name {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return true, os.Remove(path)
}

// Vacant reports whether the runtime has no network configuration except nodelet's.
func Vacant(confDir string) bool {
	files, err := configFiles(confDir)
	if errors.Is(err, fs.ErrNotExist) {
		return true
	}
	return err == nil && (len(files) == 0 || len(files) == 1 && filepath.Base(files[0]) == installedFile)
}
