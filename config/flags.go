package config

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/nodelet/nodelet/internal/suggest"
)

// flagValues are the values of the command line by flag name, in the type of the flag's kind. Flags that are not given,
// or with a value that counts as not set, are missing.
type flagValues map[string]any

// text returns the value of a flag of type string, or its default.
func (v flagValues) text(flag string) string {
	if s, ok := v[flag].(string); ok {
		return s
	}
	for _, k := range settingTable {
		if k.flag == flag {
			return k.def
		}
	}
	panic("config: no flag " + flag)
}

// resolvePaths makes relative paths absolute: they refer to dir.
func (v flagValues) resolvePaths(dir string) {
	for _, k := range settingTable {
		if path, ok := v[k.flag].(string); ok && (k.kind == kFile || k.kind == kDir) {
			v[k.flag] = below(dir, path)
		}
	}
	bins, _ := v["cni-bin-dir"].([]string)
	for i := range bins {
		bins[i] = below(dir, bins[i])
	}
}

// rawFlag is a pflag.Value that the kind of the setting parses.
type rawFlag struct {
	kind *kind
	val  any
}

func (r *rawFlag) String() string { return "" }
func (r *rawFlag) Type() string   { return r.kind.typ }

// IsBoolFlag reports whether the flag needs no value.
func (r *rawFlag) IsBoolFlag() bool { return r.kind == kBool || r.kind == kVersion }

// Set is called for each occurrence of the flag.
func (r *rawFlag) Set(text string) (err error) {
	r.val, err = r.kind.read(r.val, text)
	return err
}

// newFlagSet returns all flags of settingTable, --help and --help-all.
func newFlagSet() *pflag.FlagSet {
	fs := pflag.NewFlagSet("nodelet", pflag.ContinueOnError)
	fs.SetNormalizeFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		name = strings.ReplaceAll(name, "_", "-")
		if flag, ok := aliases[name]; ok {
			name = flag
		}
		return pflag.NormalizedName(name)
	})
	for _, k := range settingTable {
		if k.flag == "" {
			continue
		}
		raw, short := &rawFlag{kind: k.kind}, ""
		if len(k.flag) == 1 {
			short = k.flag
		}
		f := fs.VarPF(raw, k.flag, short, "")
		if raw.IsBoolFlag() {
			f.NoOptDefVal = "true"
		}
	}
	fs.BoolP("help", "h", false, "")
	fs.Bool("help-all", false, "")
	return fs
}

// parseFlags parses the command line (without the name of the program).
func parseFlags(args []string) (flagValues, error) {
	fs := newFlagSet()
	fs.Usage = func() {} // Load prints nothing
	if err := fs.Parse(args); err != nil {
		return nil, explainFlagError(fs, err)
	}
	if fs.NArg() > 0 {
		if strings.ContainsAny(fs.Arg(0), "/.") {
			return nil, fmt.Errorf("unexpected argument %q: name a configuration file with --config=%[1]s (see --help)",
				fs.Arg(0))
		}
		return nil, fmt.Errorf("unexpected argument %q: flags begin with \"--\", and a command must come before them "+
			"(see --help)", fs.Arg(0))
	}
	for name, request := range map[string]*TextRequest{"help": {Help: true}, "help-all": {Text: helpAllText()}} {
		if asked, err := fs.GetBool(name); err == nil && asked {
			return nil, request
		}
	}
	values := given(fs)
	if asked, _ := values["version"].(bool); asked {
		return nil, &TextRequest{Text: VersionText()}
	}
	return values, nil
}

// given returns the values of the flags that were parsed.
func given(fs *pflag.FlagSet) flagValues {
	values := flagValues{}
	fs.Visit(func(f *pflag.Flag) {
		if raw, ok := f.Value.(*rawFlag); ok && raw.val != nil {
			values[f.Name] = raw.val
		}
	})
	return values
}

// explainFlagError converts errors of pflag about the agent's flags to errors that say what to do.
func explainFlagError(fs *pflag.FlagSet, err error) error {
	if missing, ok := errors.AsType[*pflag.NotExistError](err); ok {
		name := strings.ReplaceAll(missing.GetSpecifiedName(), "_", "-")
		if advice, was := removed[name]; was {
			return fmt.Errorf("flag --%s was removed from Kubernetes: %s", name, advice)
		}
	}
	return FlagError(fs, err, "--help and --help-all", slices.Collect(maps.Keys(aliases))...)
}

// FlagError converts an error of pflag to one that says what to do. see names where the flags are listed; more are
// other names of flags.
func FlagError(fs *pflag.FlagSet, err error, see string, more ...string) error {
	var missing *pflag.NotExistError
	var invalid *pflag.InvalidValueError
	var empty *pflag.ValueRequiredError
	var syntax *pflag.InvalidSyntaxError
	switch {
	case errors.As(err, &missing):
		return unknownFlag(fs, missing, see, more)
	case errors.As(err, &invalid):
		return fmt.Errorf("%s: %w", dashed(invalid.GetFlag().Name), invalid.Unwrap())
	case errors.As(err, &empty):
		name := dashed(empty.GetFlag().Name)
		return fmt.Errorf("%s needs a value: %[1]s=%s", name, valueOf(empty.GetFlag()))
	case errors.As(err, &syntax):
		return fmt.Errorf("%q is not a flag (see %s)", syntax.GetSpecifiedFlag(), see)
	}
	return fmt.Errorf("parse the command line: %w", err)
}

func unknownFlag(fs *pflag.FlagSet, missing *pflag.NotExistError, see string, known []string) error {
	if short := missing.GetSpecifiedShortnames(); short != "" {
		return fmt.Errorf("unknown flag -%s (see %s)", missing.GetSpecifiedName(), see)
	}
	fs.VisitAll(func(f *pflag.Flag) { known = append(known, f.Name) })
	name := missing.GetSpecifiedName()
	if near := suggest.Nearest(name, known); near != "" {
		return fmt.Errorf("unknown flag --%s; did you mean --%s? (see %s)", name, near, see)
	}
	return fmt.Errorf("unknown flag --%s (see %s)", name, see)
}

func dashed(flag string) string {
	if len(flag) == 1 {
		return "-" + flag
	}
	return "--" + flag
}

// valueOf returns the word for the value of a flag.
func valueOf(f *pflag.Flag) string {
	if raw, ok := f.Value.(*rawFlag); ok {
		return raw.kind.usage
	}
	value, _ := pflag.UnquoteUsage(f)
	return value
}

// applyFlags sets the fields of the given flags. Load merges feature gates itself.
func applyFlags(c *KubeletConfiguration, values flagValues) error {
	for _, k := range settingTable {
		v, given := values[k.flag]
		if k.field == "" || k.flag == "" || k.field == "featureGates" || !given {
			continue
		}
		if k.flag == "seccomp-default" && v == false {
			continue // as in the kubelet, this flag can only turn the field on
		}
		if err := set(fieldAt(c, k.field, true), k.field, v); err != nil {
			return fmt.Errorf("--%s: %w", k.flag, err)
		}
	}
	return nil
}
