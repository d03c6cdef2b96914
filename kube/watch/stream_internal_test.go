package watch

import (
	"bytes"
	"errors"
	"io"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	apiwatch "k8s.io/apimachinery/pkg/watch"

	"github.com/nodelet/nodelet/kube/client"
	"github.com/nodelet/nodelet/test/kube/frame"
)

func streamOf(data []byte) *Stream {
	info, _ := runtime.SerializerInfoForMediaType(client.Codecs.SupportedMediaTypes(), runtime.ContentTypeProtobuf)
	return &Stream{
		body: io.NopCloser(bytes.NewReader(data)), cancel: func() {},
		events: info.StreamSerializer.Serializer, object: info.Serializer,
	}
}

func TestNextErrors(t *testing.T) {
	good := frame.Of(apiwatch.Added, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "a"}})
	for name, c := range map[string]struct {
		data []byte
		want error // nil: any error
	}{
		"agreed end":      {nil, io.EOF},
		"cut in length":   {good[:2], io.ErrUnexpectedEOF},
		"cut after it":    {good[:4], io.ErrUnexpectedEOF},
		"cut in event":    {good[:20], io.ErrUnexpectedEOF},
		"monstrous frame": {[]byte{0xff, 0, 0, 0}, nil},
		"no protobuf":     {[]byte{0, 0, 0, 4, 1, 2, 3, 4}, nil},
		"unknown type":    {frame.Of("NEWS", &corev1.Pod{}), nil},
		"no metadata":     {frame.Of(apiwatch.Added, &corev1.PodList{}), nil},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := streamOf(c.data).Next()
			if err == nil || (c.want != nil && !errors.Is(err, c.want)) {
				t.Errorf("error: got %v, want %v", err, c.want)
			}
		})
	}
}

// TestNextForgotten checks that a version that has expired is known as such from the event that the API server sends.
func TestNextForgotten(t *testing.T) {
	expired := apierrors.NewResourceExpired("too old resource version").ErrStatus
	_, err := streamOf(frame.Of(apiwatch.Error, &expired)).Next()
	if !Forgotten(err) {
		t.Errorf("got error %v, want one of a version that has expired", err)
	}
}

// FuzzNext checks that whatever a server sends, Next returns: an event with an object, or an error.
func FuzzNext(f *testing.F) {
	f.Add(frame.Of(apiwatch.Added, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "a"}}))
	f.Add(frame.Of(apiwatch.Bookmark, &corev1.ConfigMap{}))
	f.Add(frame.Of(apiwatch.Error, &metav1.Status{Code: 410}))
	f.Add([]byte{0, 0, 0, 1, 0})
	f.Fuzz(func(t *testing.T, data []byte) {
		s := streamOf(data)
		for {
			ev, err := s.Next()
			if err != nil {
				return
			}
			if ev.Object == nil {
				t.Fatal("got an event without an object, want one with an object")
			}
		}
	})
}
