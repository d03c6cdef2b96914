package cni

import (
	"encoding/json"
	"testing"
)

// FuzzResult: whatever a plugin prints as its result, the status of the pod's networks is an error or JSON, and so is
// the conversion for the runtime.
func FuzzResult(f *testing.F) {
	for _, seed := range []string{"", "null", "{}",
		`{"cniVersion":"1.0.0","interfaces":[null],"ips":[null,{"address":"10.0.0.2/24","interface":7}],"dns":{}}`,
		`{"cniVersion":"0.2.0","ip4":{"ip":"10.0.0.2/24"}}`, `{"cniVersion":"9.9.9"}`,
		`{"cniVersion":"0.4.0","interfaces":[null]}`,
		`{"cniVersion":"1.1.0","interfaces":[{"name":"eth0","sandbox":"/n"}],
			"ips":[{"address":"fe80::1/64","interface":0}]}`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, result []byte) {
		r := &Record{Attachments: []Attachment{{Network: "net", IfName: "eth0", Result: result}}}
		if text, err := r.StatusText(); err == nil && !json.Valid([]byte(text)) {
			t.Errorf("%q: got the status %q, want JSON", result, text)
		}
		for _, version := range []string{"1.1.0", "0.4.0", "0.2.0"} {
			if text, err := convert(result, version); err == nil && !json.Valid(text) {
				t.Errorf("%q: got the result %q, want JSON", result, text)
			}
		}
	})
}
