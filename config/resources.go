package config

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/nodelet/nodelet/agent/eviction/policy"
	"github.com/nodelet/nodelet/internal/suggest"
)

// thresholds parses evictionHard, evictionSoft and the fields that belong to them. The result is sorted by signal, hard
// ones first.
func thresholds(c *KubeletConfiguration) ([]policy.Threshold, error) {
	hard, err := hardThresholds(c)
	if err != nil {
		return nil, err
	}
	soft, err := readThresholds("evictionSoft", c.EvictionSoft)
	if err != nil {
		return nil, err
	}
	for i := range soft {
		text, ok := c.EvictionSoftGracePeriod[soft[i].Signal]
		if !ok {
			return nil, fmt.Errorf("%s: %s has no grace period; set it in %s",
				named("evictionSoft"), soft[i].Signal, named("evictionSoftGracePeriod"))
		}
		if soft[i].Grace, err = time.ParseDuration(text); err != nil || soft[i].Grace < 0 {
			return nil, fmt.Errorf("%s: %s: %q is not a duration such as 1m30s", named("evictionSoftGracePeriod"),
				soft[i].Signal, text)
		}
	}
	if err := knownSignals("evictionSoftGracePeriod", c.EvictionSoftGracePeriod); err != nil {
		return nil, err
	}
	all := append(hard, soft...)
	return all, addReclaims(all, c.EvictionMinimumReclaim)
}

func hardThresholds(c *KubeletConfiguration) ([]policy.Threshold, error) {
	return readThresholds("evictionHard", c.EvictionHard)
}

func readThresholds(field string, m map[string]string) ([]policy.Threshold, error) {
	if err := knownSignals(field, m); err != nil {
		return nil, err
	}
	var all []policy.Threshold
	for _, signal := range slices.Sorted(maps.Keys(m)) {
		value, err := amount(m[signal])
		if err != nil {
			return nil, fmt.Errorf("%s: %s: %w", named(field), signal, err)
		}
		if value.Quantity == nil && (value.Percentage == 0 || value.Percentage == 100) {
			continue
		}
		if value.Quantity != nil && value.Quantity.Sign() <= 0 {
			return nil, fmt.Errorf(`%s: %s: %q is not greater than zero; "0%%" turns the threshold off`, named(field), signal,
				m[signal])
		}
		all = append(all, policy.Threshold{Signal: signal, Value: value})
	}
	return all, nil
}

func addReclaims(all []policy.Threshold, m map[string]string) error {
	if err := knownSignals("evictionMinimumReclaim", m); err != nil {
		return err
	}
	for signal, text := range m {
		reclaim, err := amount(text)
		if err != nil || reclaim.Quantity != nil && reclaim.Quantity.Sign() < 0 {
			return fmt.Errorf("%s: %s: %q is not an amount such as 500Mi or 5%%", named("evictionMinimumReclaim"), signal, text)
		}
		for i := range all {
			if all[i].Signal == signal {
				all[i].Reclaim = reclaim
			}
		}
	}
	return nil
}

func knownSignals(field string, m map[string]string) error {
	for _, signal := range slices.Sorted(maps.Keys(m)) {
		if !slices.Contains(policy.Signals, signal) {
			return fmt.Errorf("%s: %q is not a valid eviction signal%s", named(field), signal,
				suggest.DidYouMean(signal, policy.Signals))
		}
	}
	return nil
}

// amount parses "500Mi" or "10%".
func amount(text string) (policy.Amount, error) {
	if number, ok := strings.CutSuffix(text, "%"); ok {
		p, err := strconv.ParseFloat(number, 64)
		if err != nil || math.IsNaN(p) || p < 0 || p > 100 {
			return policy.Amount{}, fmt.Errorf("%q is not between 0%% and 100%%", text)
		}
		return policy.Amount{Percentage: p}, nil
	}
	q, err := resource.ParseQuantity(text)
	if err != nil {
		return policy.Amount{}, fmt.Errorf("%q is neither a quantity such as 500Mi nor a share such as 10%%", text)
	}
	return policy.Amount{Quantity: &q}, nil
}

// reservedList parses kubeReserved or systemReserved: cpu, memory, ephemeral-storage and pid. It rounds cpu to
// thousandths, as the kubelet does.
func reservedList(m map[string]string) (corev1.ResourceList, error) {
	names := []string{"cpu", "memory", "ephemeral-storage", "pid"}
	list := corev1.ResourceList{}
	for _, name := range slices.Sorted(maps.Keys(m)) {
		if !slices.Contains(names, name) {
			return nil, fmt.Errorf("%q cannot be reserved; want one of %s", name, strings.Join(names, ", "))
		}
		q, err := resource.ParseQuantity(m[name])
		if err != nil || q.Sign() < 0 {
			return nil, fmt.Errorf("%s: %q is not a quantity such as 500Mi", name, m[name])
		}
		if name == "cpu" {
			q.SetMilli((q.ScaledValue(resource.Micro) + 500) / 1000)
		}
		list[corev1.ResourceName(name)] = q
	}
	return list, nil
}
