package cni

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/utils"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/nodelet/nodelet/host/boundedfile"
)

// maxConfig bounds a network configuration, in bytes.
const maxConfig = 1 << 20

// Network is a network that sandboxes can be attached to: a chain of plugins.
type Network = libcni.NetworkConfigList

// versions are those of the CNI specification that libcni supports; the first two are obsolete.
var versions = version.All.SupportedVersions()

// extensions are the file name extensions of network configurations, as runtimes define them.
var extensions = []string{".conf", ".conflist", ".json"}

var errLarge = fmt.Errorf("larger than %d bytes", maxConfig)

// parseNetwork parses a network configuration: a list of plugins ("conflist") or a single plugin. The error is written
// for the author of the configuration.
func parseNetwork(text []byte) (*Network, error) { return parseIn("", text) }

// parseIn parses the network configuration of a file in a directory, with the plugins that others there add to it.
func parseIn(dir string, text []byte) (*Network, error) {
	if len(text) > maxConfig {
		return nil, errLarge
	}
	if err := checkShape(text); err != nil {
		return nil, err
	}
	list, err := parseList(dir, text)
	if err != nil {
		return nil, err
	}
	return list, checkNetwork(list)
}

// checkShape returns errors that libcni ignores or reports in terms of Go.
func checkShape(text []byte) error {
	var shape struct {
		Plugins []json.RawMessage `json:"plugins"`
	}
	if err := json.Unmarshal(text, &shape); err != nil {
		if syntax, ok := errors.AsType[*json.SyntaxError](err); ok {
			return fmt.Errorf("not JSON: %w, at byte %d", err, syntax.Offset)
		}
		return fmt.Errorf("not a network configuration: %w", err)
	}
	return nil
}

func parseList(dir string, text []byte) (list *Network, err error) {
	defer func() { // libcni panics on unexpected types
		if p := recover(); p != nil {
			list, err = nil, fmt.Errorf("not a network configuration: %v", p)
		}
	}()
	var single struct {
		Type string `json:"type"`
	}
	_ = json.Unmarshal(text, &single)
	if single.Type == "" {
		if list, err = libcni.NetworkConfFromBytes(text); err == nil && dir != "" && !list.LoadOnlyInlinedPlugins {
			err = extend(list, filepath.Join(dir, list.Name))
		}
		return list, err
	}
	one, err := libcni.NetworkPluginConfFromBytes(text)
	if err != nil {
		return nil, err
	}
	return libcni.ConfListFromConf(one)
}

// extend adds the plugins to a list that are in the directory with its name.
func extend(list *Network, dir string) error {
	files, err := configFiles(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, f := range files {
		if filepath.Ext(f) != ".conf" {
			continue
		}
		text, err := boundedfile.Read(f, maxConfig)
		if err != nil {
			return err
		}
		p, err := libcni.NetworkPluginConfFromBytes(text)
		if err != nil {
			return fmt.Errorf("%s: %w", f, err)
		}
		list.Plugins = append(list.Plugins, p)
	}
	if list.Bytes, err = flatten(list, nil); err == nil && len(list.Bytes) > maxConfig {
		return errLarge
	}
	return err
}

func checkNetwork(n *Network) error {
	if err := utils.ValidateNetworkName(n.Name); err != nil {
		return fmt.Errorf(`"name" %q is not a valid network name: %s`, n.Name, err.Details)
	}
	if n.CNIVersion != "" && !slices.Contains(versions, n.CNIVersion) {
		return fmt.Errorf(`unknown "cniVersion" %q; want one of %s`, n.CNIVersion, strings.Join(versions[2:], ", "))
	}
	if len(n.Plugins) == 0 {
		return errors.New(`no plugin: want "plugins" with at least one, or "type"`)
	}
	for i, p := range n.Plugins {
		if t := p.Network.Type; t == "" || t == "." || t == ".." || strings.ContainsAny(t, "/\x00") {
			return fmt.Errorf(`plugin number %d has "type" %q, which is not the name of a program`, i, p.Network.Type)
		}
	}
	return nil
}

// programs returns the plugins that a runtime runs for a network, each once. Those for address management are not among
// them: a plugin runs them itself, and not all plugins need theirs on the node (that of Antrea is in its container).
func programs(n *Network) []string {
	var all []string
	for _, p := range n.Plugins {
		if !slices.Contains(all, p.Network.Type) {
			all = append(all, p.Network.Type)
		}
	}
	return all
}

// asked returns the network without the plugins that have "onlyIfAsked" set and for whose capabilities there is no
// argument: they would have nothing to do. The first plugin always runs, because it makes the interface.
func asked(n *Network, capabilities map[string]any) *Network {
	some := *n
	some.Plugins = nil
	for i, p := range n.Plugins {
		if i == 0 || !onlyIfAsked(p) || asksFor(p, capabilities) {
			some.Plugins = append(some.Plugins, p)
		}
	}
	return &some
}

// onlyIfAsked reports whether the plugin has nodelet's own field onlyIfAsked set. Plugins ignore that field.
func onlyIfAsked(p *libcni.PluginConfig) bool {
	var c struct {
		OnlyIfAsked bool `json:"onlyIfAsked"`
	}
	return json.Unmarshal(p.Bytes, &c) == nil && c.OnlyIfAsked
}

func asksFor(p *libcni.PluginConfig, capabilities map[string]any) bool {
	for name, declared := range p.Network.Capabilities {
		if declared && !isEmpty(capabilities[name]) {
			return true
		}
	}
	return false
}

// isEmpty reports whether a capability argument asks for nothing.
func isEmpty(argument any) bool {
	text, err := json.Marshal(argument)
	return err == nil && slices.Contains([]string{"null", "[]", "{}", `""`}, string(text))
}

// missing returns an error that names the first plugin of a network that is in none of the directories, or cannot run.
// more are plugins that it needs too. Like a runtime, it looks no further than the first file with the plugin's name.
func missing(n *Network, dirs []string, more ...string) error {
	for _, name := range append(programs(n), more...) {
		file, err := invoke.FindInPath(name, dirs)
		if err != nil {
			return fmt.Errorf("network %s needs the plugin %q, which is not in %q: install it there", n.Name, name, dirs)
		}
		if fi, err := os.Stat(file); err == nil && fi.Mode()&0o111 == 0 {
			return fmt.Errorf("network %s needs the plugin %s, which is not executable: run chmod +x %[2]s", n.Name, file)
		}
	}
	return nil
}

// readNetwork reads a file with a network configuration.
func readNetwork(path string) (*Network, error) {
	text, err := boundedfile.Read(path, maxConfig)
	if err == nil {
		var n *Network
		if n, err = parseIn(filepath.Dir(path), text); err == nil {
			return n, nil
		}
	}
	return nil, fmt.Errorf("network configuration %s: %w", path, err)
}

// configFiles returns the network configurations in a directory, in the order in which runtimes read them.
func configFiles(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir) // sorted by name
	if err != nil {
		return nil, err
	}
	var files []string
	for _, e := range entries {
		if !e.IsDir() && slices.Contains(extensions, filepath.Ext(e.Name())) {
			files = append(files, filepath.Join(dir, e.Name()))
		}
	}
	return files, nil
}

// firstNetwork returns the configuration that runtimes use: the first valid one in the directory, apart from the files
// except. The error says what is wrong with each file, or that there is none.
func firstNetwork(dir string, except ...string) (*Network, error) {
	files, err := configFiles(dir)
	if err != nil {
		return nil, fmt.Errorf("list network configurations: %w", err)
	}
	files = slices.DeleteFunc(files, func(f string) bool { return slices.Contains(except, filepath.Base(f)) })
	var wrong []error
	for _, f := range files {
		if n, err := readNetwork(f); err == nil {
			return n, errors.Join(wrong...)
		} else {
			wrong = append(wrong, err)
		}
	}
	if len(wrong) == 0 {
		wrong = append(wrong, fmt.Errorf("no network configuration (*.conflist, *.conf, *.json) in %s: "+
			"install a network add-on, "+
			"or let nodelet set up the network with --network=agent", dir))
	}
	return nil, errors.Join(wrong...)
}

// First returns the network that a runtime with this configuration directory uses, or nil.
func First(confDir string) *Network {
	n, _ := firstNetwork(confDir)
	return n
}
