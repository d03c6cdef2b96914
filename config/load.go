package config

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"

	"github.com/spf13/pflag"
	"sigs.k8s.io/yaml"

	"github.com/nodelet/nodelet/internal/strict"
)

// UsageError is an error in the command line itself: an unknown command or flag, or a value that a flag cannot have.
type UsageError struct{ Err error }

func (e *UsageError) Error() string { return e.Err.Error() }

func (e *UsageError) Unwrap() error { return e.Err }

// Load reads the command line (without the name of the program) and the files it names. An error is written for the
// user: it names the file or flag, the field, the value, and what is allowed; it lists all problems of one file. It is
// a *UsageError if the command line is wrong, and a *TextRequest if the command line asks for --help, --help-all or
// --version.
func Load(args []string) (*Config, error) { return LoadIn("", args) }

// LoadIn is Load for an agent that runs in dir: relative paths refer to that, and become absolute.
func LoadIn(dir string, args []string) (*Config, error) {
	flags, err := parseFlags(args)
	if _, ok := errors.AsType[*TextRequest](err); err != nil && !ok {
		err = &UsageError{err}
	}
	if err != nil {
		return nil, err
	}
	flags.resolvePaths(dir)
	tree, err := readTrees(flags.text("config"), flags.text("config-dir"))
	if err != nil {
		return nil, err
	}
	resolvePaths(tree, dir)
	kubelet, err := decode(tree)
	if err != nil {
		return nil, err
	}
	if gates, ok := flags["feature-gates"].(map[string]bool); ok {
		if kubelet.FeatureGates == nil {
			kubelet.FeatureGates = map[string]bool{}
		}
		maps.Copy(kubelet.FeatureGates, gates) // some defaults depend on them
	}
	setDefaults(kubelet)
	if err := applyFlags(kubelet, flags); err != nil {
		return nil, err
	}
	if err := validate(kubelet); err != nil {
		return nil, err
	}
	c := &Config{
		Kubelet:  *kubelet,
		Flags:    shownFlags(flags),
		Warnings: warnings(kubelet, tree, flags),
		written:  writtenFields(tree, flags),
	}
	if err := c.addFlags(flags); err != nil {
		return nil, err
	}
	return c, nil
}

// LoadHealthz is LoadIn for the address of the health checks alone: it ignores all other settings and the drop-in
// files, so that it also reads a configuration that only the kubelet accepts. As there, the last of equal fields and
// the first document count.
func LoadHealthz(dir string, args []string) (*Config, error) {
	fs := newFlagSet()
	fs.ParseErrorsAllowlist.UnknownFlagsHandling = pflag.IgnoreUnknownFlag
	_ = fs.Parse(args) // what comes before a wrong value counts
	flags := given(fs)
	flags.resolvePaths(dir)
	text, _ := os.ReadFile(flags.text("config")) // without the file the flags count
	var tree map[string]any
	_ = yaml.Unmarshal(text, &tree)
	fields := map[string]string{"healthz-port": "healthzPort", "healthz-bind-address": "healthzBindAddress"}
	var kept []string
	for flag, field := range fields {
		if value := cmp.Or(flags[flag], tree[field]); value != nil {
			kept = append(kept, fmt.Sprintf("--%s=%v", flag, value))
		}
	}
	return Load(kept)
}

// addFlags sets what the flags without a field say.
func (c *Config) addFlags(flags flagValues) (err error) {
	c.Paths = Paths{
		Kubeconfig:          flags.text("kubeconfig"),
		BootstrapKubeconfig: flags.text("bootstrap-kubeconfig"),
		Root:                flags.text("root-dir"),
		Certificates:        flags.text("cert-dir"),
	}
	if c.Paths.BootstrapKubeconfig != "" && c.Paths.Kubeconfig == "" {
		return errors.New("--bootstrap-kubeconfig needs --kubeconfig: " +
			"the file that is written when the node has its certificate")
	}
	c.Providers = Providers{
		Config: flags.text("image-credential-provider-config"),
		BinDir: flags.text("image-credential-provider-bin-dir"),
	}
	c.RuntimeCgroup = flags.text("runtime-cgroups")
	c.AcceptMissing, _ = flags["accept-missing"].([]string)
	if c.Node, err = readNode(flags); err != nil {
		return err
	}
	c.Network, err = readNetwork(&c.Kubelet, flags)
	return err
}

// writtenFields returns the fields that a file or a flag sets.
func writtenFields(tree map[string]any, flags flagValues) map[string]bool {
	written := map[string]bool{}
	for _, k := range settingTable {
		_, byFlag := flags[k.flag]
		written[k.field] = byFlag || isSet(tree, k.field)
	}
	return written
}

// decode converts a checked tree to a configuration.
func decode(tree map[string]any) (*KubeletConfiguration, error) {
	c := &KubeletConfiguration{}
	return c, strict.Decode(tree, c)
}

// warnings returns the written settings without effect. Those of tree that are unknown are empty: see withoutEmpty.
func warnings(c *KubeletConfiguration, tree map[string]any, flags flagValues) []Warning {
	var all []Warning
	for _, unknown := range strict.Check(tree, c) {
		all = append(all, Warning{Field: unknown.Path, Text: noEffectText + ": " + unknown.Text})
	}
	for _, k := range settingTable {
		value, byFlag := flags[k.flag]
		if byFlag = byFlag && k.flag != ""; !byFlag && k.field != "" {
			parent, name := descend(tree, k.field)
			value = parent[name]
		}
		if support, _ := k.support(); support != NoEffect || k.asksForNothing(value) {
			continue
		}
		w := Warning{Field: k.field, Text: noEffectText}
		if lost := breaks[k.field]; gateEnabled(c.FeatureGates, lost.gate) {
			w.Breaks = lost.text
		}
		if byFlag {
			w.Flag = k.flag
		}
		if k.help != "" {
			w.Text += ": " + k.help
		}
		all = append(all, w)
	}
	return append(all, gateWarnings(c.FeatureGates)...)
}

const (
	// DefaultRoot is the kubelet's root directory.
	DefaultRoot = "/var/lib/kubelet"
	// DefaultCertificates is its directory of certificates. Another root directory does not move it.
	DefaultCertificates = "/var/lib/kubelet/pki"
)
