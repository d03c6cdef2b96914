// Package frame encodes events of watches as the API server sends them, for the stand-ins of it in tests.
package frame

import (
	"encoding/binary"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apiwatch "k8s.io/apimachinery/pkg/watch"

	"github.com/nodelet/nodelet/kube/client"
)

// ContentType is that of a watch.
const ContentType = runtime.ContentTypeProtobuf + ";stream=watch"

// Of returns one event: its length, and a WatchEvent in protobuf with o. An error that the API server finds once it has
// accepted a watch is an event, too, with a Status: an expired version, or a cache that lags behind.
func Of(kind apiwatch.EventType, o runtime.Object) []byte {
	kinds, _, err := client.Scheme.ObjectKinds(o)
	if err != nil {
		panic(err)
	}
	// The encoder sets the kind of its argument, so it gets a copy.
	raw, err := runtime.Encode(encoder(kinds[0].GroupVersion()), o.DeepCopyObject())
	if err != nil {
		panic(err)
	}
	event, err := (&metav1.WatchEvent{Type: string(kind), Object: runtime.RawExtension{Raw: raw}}).Marshal()
	if err != nil {
		panic(err)
	}
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(event))), event...)
}

func encoder(gv schema.GroupVersion) runtime.Encoder {
	info, _ := runtime.SerializerInfoForMediaType(client.Codecs.SupportedMediaTypes(), runtime.ContentTypeProtobuf)
	return client.Codecs.EncoderForVersion(info.Serializer, gv)
}
