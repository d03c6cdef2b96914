package objects

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

// BenchmarkIdle measures what a watched ConfigMap of 1 KiB costs at rest, on a real API server: here, and with a
// Reflector and its store for each object, as the kubelet has. An operation is one object; run it with -benchtime
// 300x.
func BenchmarkIdle(b *testing.B) {
	for name, start := range map[string]func(*testing.B, rest.Interface, string, []string) func(){
		"objects": startObjects, "reflectors": startReflectors,
	} {
		b.Run(name, func(b *testing.B) {
			admin, _, ns := realServer(b)
			var names []string
			for i := range b.N {
				c := configMap(fmt.Sprint("c", i), strings.Repeat("x", 1024))
				c.Namespace = ""
				create(b, admin, ns, "configmaps", c)
				names = append(names, c.Name)
			}
			heap, goroutines := footprint()
			b.ResetTimer()
			stop := start(b, admin.Core, ns, names)
			b.StopTimer()
			h, g := footprint()
			b.ReportMetric((h-heap)/float64(b.N), "B/object")
			b.ReportMetric(float64(g-goroutines)/float64(b.N), "goroutines/object")
			stop()
		})
	}
}

// footprint returns the bytes of live heap and of stacks, and the number of goroutines, when all is at rest.
func footprint() (bytes float64, goroutines int) {
	for range 5 {
		time.Sleep(200 * time.Millisecond)
		runtime.GC()
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc + m.StackInuse), runtime.NumGoroutine()
}

func startObjects(b *testing.B, core rest.Interface, ns string, names []string) (stop func()) {
	o := New(Config{Core: core, Log: slog.New(slog.DiscardHandler)})
	for _, n := range names {
		o.Use(types.UID(n), []Ref{{ConfigMap, ns, n, true}})
	}
	for _, n := range names {
		if _, err := o.ConfigMap(b.Context(), ns, n); err != nil {
			b.Fatal(err)
		}
	}
	return o.Close
}

func startReflectors(b *testing.B, core rest.Interface, ns string, names []string) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var stores []cache.Store
	for _, n := range names {
		lw := cache.NewFilteredListWatchFromClient(core, "configmaps", ns, func(o *metav1.ListOptions) {
			o.FieldSelector = fields.OneTermEqualSelector("metadata.name", n).String()
		})
		store := cache.NewStore(cache.MetaNamespaceKeyFunc)
		go cache.NewReflector(lw, &corev1.ConfigMap{}, store, 0).RunWithContext(ctx)
		stores = append(stores, store)
	}
	for _, s := range stores {
		for len(s.ListKeys()) == 0 {
			time.Sleep(time.Millisecond)
		}
	}
	return cancel
}
