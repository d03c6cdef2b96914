package checkpoint_test

import (
	"bytes"
	"errors"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/nodelet/nodelet/plugins/devices/checkpoint"
)

// kubelets is a file that the kubelet's own code has written.
const kubelets = "testdata/kubelet-1.36.json"

// TestKubelets checks that the kubelet's file is read whole, and written as it was, to the byte.
func TestKubelets(t *testing.T) {
	text, err := os.ReadFile(kubelets)
	if err != nil {
		t.Fatal(err)
	}
	entries, registered, err := checkpoint.Unmarshal(text)
	if err != nil || len(entries) != 2 {
		t.Fatalf("got %d entries, %v, want 2", len(entries), err)
	}
	e := entries[0]
	want := checkpoint.DevicesPerNUMA{checkpoint.WithoutNUMA: {"d3"}, 0: {"d1"}, 1: {"d2"}}
	if e.ContainerName != "app" || e.ResourceName != "nodelet.test/fake" || !reflect.DeepEqual(e.DeviceIDs, want) ||
		len(e.AllocResp) == 0 {
		t.Errorf("got %+v, want the entry of app", e)
	}
	again, err := checkpoint.Marshal(entries, registered)
	if err != nil || !bytes.Equal(again, text) {
		t.Errorf("got %v, and written as\n%s\nwant\n%s", err, again, text)
	}
}

// TestDamaged checks that the readable entries of a damaged file are returned together with an error.
func TestDamaged(t *testing.T) {
	text, err := os.ReadFile(kubelets)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		text    string
		entries int
	}{
		"another device": {strings.Replace(string(text), `"d1"`, `"d7"`, 1), 2},
		"no container":   {strings.Replace(string(text), `"app"`, `""`, 1), 1},
		"cut off":        {string(text[:len(text)/2]), 0},
		"empty":          {"", 0},
		"of an old form": {`{"PodDeviceEntries":[],"RegisteredDevices":null,"Checksum":1}`, 0},
	} {
		entries, _, err := checkpoint.Unmarshal([]byte(c.text))
		if err == nil || len(entries) != c.entries {
			t.Errorf("%s: got %d entries, want %d; %v", name, len(entries), c.entries, err)
		}
	}
	huge := map[string][]string{"example.com/device": {strings.Repeat("d", checkpoint.MaxSize)}}
	if text, err := checkpoint.Marshal(nil, huge); err == nil {
		t.Errorf("content beyond the bound: got %d bytes, want an error", len(text))
	}
}

func FuzzUnmarshal(f *testing.F) {
	text, err := os.ReadFile(kubelets)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Add([]byte(`{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{"a":null}},"Checksum":0}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		entries, registered, err := checkpoint.Unmarshal(text)
		if err != nil && !errors.Is(err, checkpoint.ErrChecksum) {
			return
		}
		again, err := checkpoint.Marshal(entries, registered)
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := checkpoint.Unmarshal(again); err != nil {
			t.Errorf("reading what was written: got %v, want no error\n%s", err, again)
		}
	})
}
