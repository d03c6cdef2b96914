package block

import (
	"strings"
	"testing"
)

// FuzzParseBlkid: a device about which blkid names a signature never counts as blank.
func FuzzParseBlkid(f *testing.F) {
	for _, seed := range []string{"", "DEVNAME=/dev/sda\n", "DEVNAME=/dev/sda\nTYPE=ext4\n",
		"DEVNAME=/dev/sda\nPTTYPE=gpt\n", "TYPE=xfs\nTYPE=\nDEVNAME=x\n", `/dev/sda: TYPE="ext4"`, "TYPE=\n"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, out string) {
		held, err := parseBlkid("/dev/sda", out)
		if held != "" || err != nil {
			return
		}
		for line := range strings.Lines(out) {
			name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
			if (name == "TYPE" || name == "PTTYPE") && value != "" {
				t.Errorf("%q: got a blank device, want one with contents", out)
			}
		}
	})
}
