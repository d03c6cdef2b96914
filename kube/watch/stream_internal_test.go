package watch

import (
	"bytes"
	"errors"
	"io"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	apiwatch "k8s.io/apimachinery/pkg/watch"

	"github.com/nodelet/nodelet/kube/client"
)

func streamOf(data []byte) *Stream {
	info, _ := runtime.SerializerInfoForMediaType(client.Codecs.SupportedMediaTypes(), runtime.ContentTypeProtobuf)
	return &Stream{
		body: io.NopCloser(bytes.NewReader(data)), cancel: func() {},
		events: info.StreamSerializer.Serializer, object: info.Serializer,
	}
}

func frameOf(t testing.TB, kind apiwatch.EventType, o runtime.Object) []byte {
	info, _ := runtime.SerializerInfoForMediaType(client.Codecs.SupportedMediaTypes(), runtime.ContentTypeProtobuf)
	raw, err := runtime.Encode(client.Codecs.EncoderForVersion(info.Serializer, corev1.SchemeGroupVersion), o)
	if err != nil {
		t.Fatal(err)
	}
	data, err := (&metav1.WatchEvent{Type: string(kind), Object: runtime.RawExtension{Raw: raw}}).Marshal()
	if err != nil {
		t.Fatal(err)
	}
	n := len(data)
	return append([]byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)}, data...)
}

func TestNextErrors(t *testing.T) {
	good := frameOf(t, apiwatch.Added, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "a"}})
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
		"unknown type":    {frameOf(t, "NEWS", &corev1.Pod{}), nil},
		"no metadata":     {frameOf(t, apiwatch.Added, &corev1.PodList{}), nil},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := streamOf(c.data).Next()
			if err == nil || (c.want != nil && !errors.Is(err, c.want)) {
				t.Errorf("error: got %v, want %v", err, c.want)
			}
		})
	}
}

// FuzzNext checks that whatever a server sends, Next returns: an event with an object, or an error.
func FuzzNext(f *testing.F) {
	f.Add(frameOf(f, apiwatch.Added, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "a"}}))
	f.Add(frameOf(f, apiwatch.Bookmark, &corev1.ConfigMap{}))
	f.Add(frameOf(f, apiwatch.Error, &metav1.Status{Code: 410}))
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
