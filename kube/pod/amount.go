package pod

import (
	"math"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Amount returns how much of a resource a list has: in thousandths of a CPU, otherwise as a whole number. A pod may
// name more than int64 can hold. The methods of a quantity then return any number, also a negative one; Amount returns
// the largest number. It is never negative.
func Amount(list corev1.ResourceList, name corev1.ResourceName) int64 {
	return amount(list[name], name)
}

func amount(q resource.Quantity, name corev1.ResourceName) int64 {
	scale, most := resource.Scale(0), int64(math.MaxInt64)
	if name == corev1.ResourceCPU {
		scale, most = resource.Milli, most/1000
	}
	if q.CmpInt64(most) > 0 {
		return math.MaxInt64
	}
	return max(0, q.ScaledValue(scale))
}

// Sum adds up amounts of a resource. The largest number stands for all sums beyond it.
func Sum(a, b int64) int64 {
	if b > 0 && a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}
