package cni

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/nodelet/nodelet/test/ownmounts"
	"github.com/nodelet/nodelet/test/testbed"
)

// TestSuspend checks that a suspend of the machine does not count in the age of a record: ADD does not go on meanwhile.
// In a time namespace, the clock that goes on during a suspend is ahead by a day.
func TestSuspend(t *testing.T) {
	const variable = "NODELET_TEST_RECORD"
	if text := os.Getenv(variable); text != "" {
		r := &Record{}
		if err := json.Unmarshal([]byte(text), r); err != nil {
			t.Fatal(err)
		}
		r.Began = r.Began.Add(-24 * time.Hour)
		if age := r.age(); age > abandoned {
			t.Errorf("age: got %s, want at most %s", age, abandoned)
		}
		return
	}
	testbed.NeedPrograms(t, map[string]string{"unshare": "util-linux"})
	if out, err := exec.Command("unshare", "--time", "true").CombinedOutput(); err != nil {
		ownmounts.Need(t, "a time namespace", fmt.Errorf("%w: %s", err, out))
	}
	record, err := json.Marshal((&bench{}).record("one"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("unshare", "--fork", "--time", "--boottime", "86400", os.Args[0], "-test.run=^TestSuspend$")
	cmd.Env = append(os.Environ(), variable+"="+string(record))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}
