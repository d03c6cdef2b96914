package config

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nodelet/nodelet/internal/suggest"
)

// checker collects all errors of a configuration.
type checker struct {
	c    *KubeletConfiguration
	errs []error
}

// validate checks a configuration with defaults as the kubelet does. Each error names the field and its flag, the
// value, and what is allowed.
func validate(c *KubeletConfiguration) error {
	v := &checker{c: c}
	v.checkServers()
	v.checkNode()
	v.checkImages()
	v.checkCgroups()
	v.checkCPUAndMemory()
	v.checkReserved()
	v.checkAllocatable()
	v.checkPods()
	v.checkShutdown()
	v.checkLogging()
	v.checkTracing()
	return errors.Join(v.errs...)
}

// named returns the field with its flag, such as "maxPods (--max-pods)".
func named(field string) string {
	for _, k := range settingTable {
		if k.field == field && k.flag != "" {
			return fmt.Sprintf("%s (--%s)", field, k.flag)
		}
	}
	return field
}

func (v *checker) bad(field, format string, args ...any) {
	v.errs = append(v.errs, fmt.Errorf("%s: %s", named(field), fmt.Sprintf(format, args...)))
}

func (v *checker) notNegative(field string, n int64) {
	if n < 0 {
		v.bad(field, "%d is negative; want zero or more", n)
	}
}

func (v *checker) between(field string, n, low, high int64) {
	if n < low || n > high {
		v.bad(field, "%d is not between %d and %d", n, low, high)
	}
}

func (v *checker) oneOf(field, got string, allowed ...string) {
	if slices.Contains(allowed, got) {
		return
	}
	quoted := make([]string, len(allowed))
	for i, a := range allowed {
		quoted[i] = fmt.Sprintf("%q", a)
	}
	v.bad(field, "%q is not one of %s%s", got, strings.Join(quoted, ", "), suggest.DidYouMean(got, allowed))
}

func (v *checker) durationNotNegative(field string, d time.Duration) {
	if d < 0 {
		v.bad(field, "%v is negative; want zero or more", d)
	}
}

// gate reports whether a feature gate is on in this configuration.
func (v *checker) gate(name string) bool { return gateEnabled(v.c.FeatureGates, name) }

func (v *checker) needsGate(field, gate string, used bool) {
	if used && !v.gate(gate) {
		v.bad(field, "needs the feature gate %s, which is off", gate)
	}
}
