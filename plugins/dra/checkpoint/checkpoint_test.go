package checkpoint_test

import (
	"errors"
	"reflect"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/plugins/dra/checkpoint"
)

func example() []checkpoint.Claim {
	return []checkpoint.Claim{{ClaimUID: "u", ClaimName: "gpu", Namespace: "ns", PodUIDs: map[string]struct{}{"p": {}},
		DriverState: map[string]checkpoint.DriverState{
			"d": {Devices: []checkpoint.Device{{PoolName: "pool", DeviceName: "dev", ShareID: new(types.UID("s")),
				RequestNames: []string{"r"}, CDIDeviceIDs: []string{"x/y=1"}}}},
			"e": {}}}}
}

// text is the example as the kubelet v1.36 writes it.
const text = `{"Data":"{\"kind\":\"DRACheckpoint\",\"apiVersion\":\"checkpoint.dra.kubelet.k8s.io/v1\",` +
	`\"ClaimInfoStateList\":[{\"ClaimUID\":\"u\",\"ClaimName\":\"gpu\",\"Namespace\":\"ns\",` +
	`\"PodUIDs\":{\"p\":{}},\"DriverState\":{\"d\":{\"Devices\":[{\"PoolName\":\"pool\",\"DeviceName\":\"dev\",` +
	`\"ShareID\":\"s\",\"RequestNames\":[\"r\"],\"CDIDeviceIDs\":[\"x/y=1\"]}]},\"e\":{\"Devices\":null}}}]}",` +
	`"Checksum":210448406}`

// TestForm checks that the file has the kubelet's form, to the byte.
func TestForm(t *testing.T) {
	got, err := checkpoint.Marshal(example())
	if err != nil || string(got) != text {
		t.Errorf("got  %s\nwant %s\n%v", got, text, err)
	}
	back, err := checkpoint.Unmarshal([]byte(text))
	if err != nil || !reflect.DeepEqual(back, example()) {
		t.Errorf("got %+v, %v, want the example", back, err)
	}
}

// TestDamaged checks that what is damaged is not believed.
func TestDamaged(t *testing.T) {
	if _, err := checkpoint.Unmarshal([]byte(strings.Replace(text, "gpu", "cpu", 1))); !errors.Is(err,
		checkpoint.ErrChecksum) {
		t.Errorf("got %v", err)
	}
	for _, claims := range [][]checkpoint.Claim{{{ClaimUID: "u", ClaimName: "gpu"}}, append(example(), example()...)} {
		twice, err := checkpoint.Marshal(claims)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := checkpoint.Unmarshal(twice); err == nil || !strings.Contains(err.Error(), "incomplete or listed twice") {
			t.Errorf("got %v", err)
		}
	}
}

// TestTooLarge checks that nothing is written that could not be read again.
func TestTooLarge(t *testing.T) {
	huge := example()
	huge[0].DriverState["huge"] = checkpoint.DriverState{Devices: []checkpoint.Device{
		{PoolName: strings.Repeat("p", checkpoint.MaxSize)},
	}}
	if text, err := checkpoint.Marshal(huge); err == nil {
		t.Errorf("got %d bytes, want an error", len(text))
	}
}

func FuzzUnmarshal(f *testing.F) {
	f.Add([]byte(text))
	f.Add([]byte(`{"Data":"{}","Checksum":2745614147}`))
	f.Add([]byte(`{"Data":"null"}`))
	f.Fuzz(func(t *testing.T, in []byte) {
		claims, err := checkpoint.Unmarshal(in)
		if err != nil {
			return
		}
		out, err := checkpoint.Marshal(claims)
		if err != nil {
			t.Fatal(err)
		}
		again, err := checkpoint.Unmarshal(out)
		if err != nil || len(again) != len(claims) {
			t.Errorf("reading what was written: got %v, want the same claims", err)
		}
	})
}
