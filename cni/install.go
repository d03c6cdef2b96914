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

// installedFile is nodelet's configuration among the runtime's. Runtimes take the first one by name.
const installedFile = "00-nodelet.conflist"

// InstallConfig says where the runtime looks for its network.
type InstallConfig struct {
	// ConfDir is where the runtime looks for configurations, BinDir where for plugins.
	ConfDir, BinDir string
	// Program is the path of nodelet's own program.
	Program string
	// Socket is where the agent listens, Dir where the records are, BinDirs where the real plugins are: the plugin is
	// told.
	Socket, Dir string
	BinDirs     []string
}

// Install makes nodelet the runtime's network plugin. It changes nothing where all is in place, so that the runtime has
// nothing to load anew.
func Install(c InstallConfig) error {
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

// KeepInstalled installs, and does so again whenever something in the runtime's directories changes, until ctx ends:
// whoever takes nodelet's files away or puts a configuration before them is named, and what is missing is put back.
// told is told each time what keeps nodelet from being the plugin, nil for nothing.
func KeepInstalled(ctx context.Context, c InstallConfig, log *slog.Logger, told func(error)) {
	last := ""
	install := func() {
		err := Install(c)
		if err != nil {
			err = fmt.Errorf("nodelet cannot be the network: %w", err)
		}
		if text := fmt.Sprint(err); text != last {
			if last = text; err != nil {
				log.Error(text)
			}
			told(err)
		}
	}
	install()
	watchDirs(ctx, []string{c.ConfDir, c.BinDir}, log, install)
}

// firstOf is an error where the runtime would take another configuration.
func firstOf(dir string) error {
	files, err := configFiles(dir)
	if err != nil || len(files) == 0 || filepath.Base(files[0]) == installedFile {
		return err
	}
	return fmt.Errorf("the runtime takes %s before %s, as it comes first by name: move it away, or give it to nodelet by --cni-conf",
		files[0], installedFile)
}

// installed is a configuration of version 1.0.0: of later ones containerd runs STATUS every few seconds.
func installed(c InstallConfig) map[string]any {
	return map[string]any{
		"cniVersion": "1.0.0", "name": OwnName,
		"plugins": []any{map[string]any{
			"type": shim.Name, "socket": c.Socket, "dir": c.Dir, "binDirs": c.BinDirs,
			"capabilities": map[string]bool{"portMappings": true, "bandwidth": true, "dns": true, "ipRanges": true, "mac": true, "ips": true,
				"infinibandGUID": true, "deviceID": true, "cgroupPath": true, podAnnotations: true},
		}},
	}
}

// Uninstall takes back what Install has written into the runtime's directory of configurations, if it is there: a node
// that is in mode "runtime" again. The plugin stays, for sandboxes that it has attached.
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

// Vacant says whether the runtime has no network configuration but nodelet's own.
func Vacant(confDir string) bool {
	files, err := configFiles(confDir)
	if errors.Is(err, fs.ErrNotExist) {
		return true
	}
	return err == nil && (len(files) == 0 || len(files) == 1 && filepath.Base(files[0]) == installedFile)
}
