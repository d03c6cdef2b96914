package command

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"sigs.k8s.io/yaml"

	"github.com/nodelet/nodelet/internal/suggest"
)

// Output is the format that -o selects: empty for text, or json, yaml, wide.
type Output struct {
	name    string
	allowed []string
}

// OutputFlag declares -o of a command that prints text; json and yaml are always allowed.
func OutputFlag(flags *pflag.FlagSet, more ...string) *Output {
	o := &Output{allowed: append([]string{"json", "yaml"}, more...)}
	flags.VarP(o, "output", "o", "output `"+strings.Join(o.allowed, "|")+"`; the default is text")
	return o
}

// StructuredFlag declares -o of a command that prints YAML or JSON.
func StructuredFlag(flags *pflag.FlagSet) *Output {
	o := &Output{name: "yaml", allowed: []string{"json", "yaml"}}
	flags.VarP(o, "output", "o", "output `json|yaml`")
	return o
}

func (o *Output) String() string { return o.name }

// Type implements pflag.Value.
func (o *Output) Type() string { return "string" }

// Set implements pflag.Value.
func (o *Output) Set(name string) error {
	if !slices.Contains(o.allowed, name) {
		return fmt.Errorf("%q is not one of %s%s", name, strings.Join(o.allowed, ", "), suggest.DidYouMean(name, o.allowed))
	}
	o.name = name
	return nil
}

// Wide reports whether -o wide was given.
func (o *Output) Wide() bool { return o.name == "wide" }

// Structured reports whether the output is JSON or YAML; Print prints it.
func (o *Output) Structured() bool { return o.name == "json" || o.name == "yaml" }

// Print prints a value as JSON or YAML.
func (o *Output) Print(out io.Writer, v any) error {
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return fmt.Errorf("encode the output: %w", err)
	}
	if o.name == "yaml" {
		if text, err = yaml.JSONToYAML(text); err != nil {
			return fmt.Errorf("encode the output: %w", err)
		}
		_, err = out.Write(text)
		return err
	}
	_, err = out.Write(append(text, '\n'))
	return err
}
