package trace

import (
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
)

// encode returns an ExportTraceServiceRequest (opentelemetry/proto/collector/trace/v1). The generated types would bring
// a gateway for HTTP into the binary and their descriptors into memory.
func (t *Tracer) encode(batch []*Span) []byte {
	var scoped []byte
	scoped = message(scoped, 1, str(str(nil, 1, "nodelet"), 2, t.cfg.Version)) // InstrumentationScope
	for _, s := range batch {
		scoped = message(scoped, 2, s.encode())
	}
	var resource []byte
	for _, kv := range [][2]string{{"service.name", "kubelet"}, {"host.name", t.cfg.Node}} {
		resource = attribute(resource, 1, kv[0], kv[1])
	}
	return message(nil, 1, message(message(nil, 1, resource), 2, scoped)) // ResourceSpans
}

// encode returns a Span (opentelemetry/proto/trace/v1).
func (s *Span) encode() []byte {
	b := message(nil, 1, s.trace[:])
	b = message(b, 2, s.id[:])
	if s.parent != ([8]byte{}) {
		b = message(b, 4, s.parent[:])
	}
	b = str(b, 5, s.name)
	b = number(b, 6, uint64(s.kind))
	b = fixed(b, 7, s.began)
	b = fixed(b, 8, s.end)
	for i := 0; i+1 < len(s.attributes); i += 2 {
		b = attribute(b, 9, s.attributes[i], s.attributes[i+1])
	}
	if s.failed {
		const statusError = 2
		b = message(b, 15, number(str(nil, 2, s.err), 3, statusError))
	}
	return b
}

// attribute appends a KeyValue with a string.
func attribute(b []byte, field protowire.Number, key, value string) []byte {
	return message(b, field, message(str(nil, 1, key), 2, str(nil, 1, value)))
}

func message(b []byte, field protowire.Number, text []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(b, field, protowire.BytesType), text)
}

// str appends a string. Errors name files of pods, whose names may have any bytes: collectors refuse a whole request
// for a string that is not UTF-8.
func str(b []byte, field protowire.Number, text string) []byte {
	return message(b, field, []byte(strings.ToValidUTF8(text, "\uFFFD")))
}

func number(b []byte, field protowire.Number, n uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(b, field, protowire.VarintType), n)
}

func fixed(b []byte, field protowire.Number, at time.Time) []byte {
	return protowire.AppendFixed64(protowire.AppendTag(b, field, protowire.Fixed64Type), uint64(at.UnixNano()))
}
