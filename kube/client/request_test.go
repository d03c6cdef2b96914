package client

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"
)

type answer func(*http.Request) (*http.Response, error)

func (a answer) RoundTrip(r *http.Request) (*http.Response, error) { return a(r) }

// TestAnswer checks that only a Status of the API server says that an object does not exist.
func TestAnswer(t *testing.T) {
	for body, missing := range map[string]bool{
		`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}`: true,
		`<html>no backend</html>`: false,
		`{"message":"Not Found"}`: false,
		"404 page not found\n":    false,
		"":                        false,
	} {
		c, err := New(&rest.Config{Host: "http://api.test", Transport: answer(func(*http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: http.StatusNotFound, Body: io.NopCloser(strings.NewReader(body)),
				Header: http.Header{"Content-Type": {"application/json"}}}, nil
		})}, 0, 0, "test")
		if err != nil {
			t.Fatal(err)
		}
		err = Bounded(t.Context(), func(ctx context.Context) error {
			return c.Core.Get().Resource("nodes").Name("a").Do(ctx).Into(&corev1.Node{})
		})
		if apierrors.IsNotFound(err) != missing || errors.Is(err, ErrNoPath) == missing {
			t.Errorf("answer %q: got %v, want that the object is missing: %v", body, err, missing)
		}
	}
}
