package config

import (
	"encoding/csv"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// kind is a type of flag values.
type kind struct {
	typ   string // the type's name in the kubelet
	usage string // what --help writes after the flag
	// read parses text. The result can be encoded as JSON into the field of the flag. prev is the value of earlier
	// occurrences of the flag, or nil: lists and maps grow, other values are replaced. A nil result counts as not set.
	read func(prev any, text string) (any, error)
}

var (
	kString     = &kind{"string", "string", func(_ any, s string) (any, error) { return s, nil }}
	kFile       = &kind{"string", "FILE", kString.read}
	kDir        = &kind{"string", "DIR", kString.read}
	kSocket     = &kind{"string", "SOCKET", kString.read}
	kIPs        = &kind{"string", "IP[,IP]", kString.read}
	kNetwork    = &kind{"string", "runtime|agent|auto", kString.read}
	kDriver     = &kind{"string", "cgroupfs|systemd", kString.read}
	kFormat     = &kind{"string", "text|json", kString.read}
	kURL        = &kind{"string", "string", kString.read}
	kPassword   = &kind{"string", "string", kString.read}
	kBool       = &kind{"bool", "", readBool}
	kInt32      = &kind{"int32", "int", readInt(32)}
	kInt64      = &kind{"int64", "int", readInt(64)}
	kLevel      = &kind{"Level", "int", readLevel}
	kDuration   = &kind{"duration", "duration", readDuration}
	kIP         = &kind{"ip", "IP", readIP}
	kQuantity   = &kind{"quantity", "quantity", readQuantity}
	kList       = &kind{"stringSlice", "A,B", readList}
	kPairs      = &kind{"mapStringString", "K=V,…", readPairs("=")}
	kThresholds = &kind{"mapStringString", "SIGNAL<V,…", readPairs("<")}
	kLabels     = &kind{"mapStringString", "K=V,…", readLabels}
	kGates      = &kind{"mapStringBool", "GATE=BOOL,…", readGates}
	kHeaders    = &kind{"colonSeparatedMultimapStringString", "K:V,…", readHeaders}
	kTaints     = &kind{"[]v1.Taint", "K=V:EFFECT,…", readTaints}
	kNUMA       = &kind{"reserved-memory", "NODE:TYPE=SIZE,…", readReservedMemory}
	kVModule    = &kind{"pattern=N,...", "PATTERN=N,…", readVModule}
	kVersion    = &kind{"version", "", readVersion}
)

func readBool(_ any, s string) (any, error) {
	b, err := strconv.ParseBool(s)
	if err != nil {
		return nil, fmt.Errorf("%q is neither true nor false", s)
	}
	return b, nil
}

func readInt(bits int) func(any, string) (any, error) {
	return func(_ any, s string) (any, error) {
		n, err := strconv.ParseInt(s, 0, bits)
		if errors.Is(err, strconv.ErrRange) {
			return nil, fmt.Errorf("%s does not fit into %d bits", s, bits)
		}
		if err != nil {
			return nil, fmt.Errorf("%q is not a whole number", s)
		}
		return n, nil
	}
}

// readLevel reads the number of -v. pflag takes the rest of -vv for its value.
func readLevel(_ any, s string) (any, error) {
	n, err := readInt(32)(nil, s)
	if err != nil && strings.Trim(s, "v") == "" {
		err = errors.New("want a number: -v=2 logs important events, -v=4 and more each step")
	}
	return n, err
}

func readDuration(_ any, s string) (any, error) {
	d, err := time.ParseDuration(s)
	if err != nil {
		return nil, fmt.Errorf("%q is not a duration such as 30s, 5m or 1h30m", s)
	}
	return d.String(), nil
}

func readIP(_ any, s string) (any, error) {
	if s == "" {
		return nil, nil
	}
	if _, err := netip.ParseAddr(s); err != nil {
		return nil, fmt.Errorf("%q is not an IP address", s)
	}
	return s, nil
}

func readQuantity(_ any, s string) (any, error) {
	if _, err := resource.ParseQuantity(s); err != nil {
		return nil, fmt.Errorf("%q is not a quantity such as 500Mi", s)
	}
	return s, nil
}

func readList(prev any, s string) (any, error) {
	list, _ := prev.([]string)
	if s == "" {
		return append([]string{}, list...), nil
	}
	more, err := csv.NewReader(strings.NewReader(s)).Read()
	if err != nil {
		return nil, fmt.Errorf("%q is not a comma-separated list: %w", s, err)
	}
	return append(list, more...), nil
}

// eachPair splits "k=v,k=v". It skips empty elements.
func eachPair(s, sep string, use func(k, v string, hasSep bool) error) error {
	for pair := range strings.SplitSeq(s, ",") {
		if pair == "" {
			continue
		}
		k, v, ok := strings.Cut(pair, sep)
		if err := use(strings.TrimSpace(k), strings.TrimSpace(v), ok); err != nil {
			return err
		}
	}
	return nil
}

func readPairs(sep string) func(any, string) (any, error) {
	return func(prev any, s string) (any, error) {
		m := ensure[string](prev)
		return m, eachPair(s, sep, func(k, v string, ok bool) error {
			if !ok {
				return fmt.Errorf("%q has no %q; want key%svalue", k, sep, sep)
			}
			m[k] = v
			return nil
		})
	}
}

func readLabels(prev any, s string) (any, error) {
	m := ensure[string](prev)
	return m, eachPair(s, "=", func(k, v string, _ bool) error { m[k] = v; return nil })
}

func readGates(prev any, s string) (any, error) {
	m := ensure[bool](prev)
	return m, eachPair(s, "=", func(k, v string, _ bool) error {
		b, err := strconv.ParseBool(v)
		if err != nil {
			return fmt.Errorf("gate %s has the value %q; want true or false", k, v)
		}
		m[k] = b
		return nil
	})
}

func readHeaders(prev any, s string) (any, error) {
	m := ensure[[]string](prev)
	return m, eachPair(s, ":", func(k, v string, ok bool) error {
		if !ok {
			return errors.New("a header has no colon; want name:value") // the text may hold a secret: do not repeat it
		}
		m[k] = append(m[k], v)
		return nil
	})
}

func readTaints(_ any, s string) (any, error) {
	taints := []corev1.Taint{}
	for text := range strings.SplitSeq(s, ",") {
		if text == "" {
			continue
		}
		keyValue, effect, ok := strings.Cut(text, ":")
		if !ok || strings.Contains(effect, ":") {
			return nil, fmt.Errorf("taint %q is not of the form key=value:Effect", text)
		}
		key, value, _ := strings.Cut(keyValue, "=")
		taints = append(taints, corev1.Taint{Key: key, Value: value, Effect: corev1.TaintEffect(effect)})
	}
	return taints, validTaints(taints)
}

// readReservedMemory reads "0:memory=1Gi,hugepages-2Mi=2Gi;1:memory=2Gi"; the flag may be given several times.
func readReservedMemory(prev any, s string) (any, error) {
	all, _ := prev.([]NUMAMemory)
	if s == "" {
		return all, nil
	}
	for text := range strings.SplitSeq(s, ";") {
		node, limits, ok := strings.Cut(text, ":")
		n, err := strconv.ParseInt(node, 10, 32)
		if !ok || err != nil {
			return nil, fmt.Errorf("%q is not of the form node:type=size, where node is the number of a NUMA node", text)
		}
		m := NUMAMemory{NumaNode: int32(n), Limits: corev1.ResourceList{}}
		err = eachPair(limits, "=", func(k, v string, _ bool) error {
			q, err := resource.ParseQuantity(v)
			if err != nil {
				return fmt.Errorf("%s=%q is not a quantity such as 500Mi", k, v)
			}
			m.Limits[corev1.ResourceName(k)] = q
			return nil
		})
		if err != nil {
			return nil, err
		}
		all = append(all, m)
	}
	return all, nil
}

func readVModule(_ any, s string) (any, error) {
	items := []VModuleItem{}
	err := eachPair(s, "=", func(k, v string, _ bool) error {
		n, err := strconv.ParseUint(v, 10, 31)
		if err != nil || k == "" {
			return fmt.Errorf("%q is not of the form pattern=N", k+"="+v)
		}
		items = append(items, VModuleItem{k, uint32(n)})
		return nil
	})
	return items, err
}

func readVersion(_ any, s string) (any, error) {
	if s == "raw" {
		return true, nil
	}
	return readBool(nil, s)
}

// ensure returns the map of earlier occurrences of the flag, or a new one.
func ensure[V any](prev any) map[string]V {
	if m, ok := prev.(map[string]V); ok {
		return m
	}
	return map[string]V{}
}
