// Package waittest lets a test wait for what another goroutine, process or machine does.
//
// Its limit is far above what a busy machine needs, and is reached only if what the test waits for never happens: then
// the test says so, instead of being killed by go test. Tests call it. It has no state.
package waittest

import (
	"context"
	"testing"
	"time"
)

// Limit is how long a test waits.
const Limit = 5 * time.Minute

// Context returns a context that ends with the test, and after Limit.
func Context(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), Limit)
	t.Cleanup(cancel)
	return ctx
}

// Until calls ok every few milliseconds until it reports true. After Limit it fails the test, with what it waited for.
func Until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(Limit); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("want within %s: %s", Limit, what)
		}
	}
}
