package cri_test

import (
	"strings"

	"github.com/nodelet/nodelet/cri"
)

// nameReserved reports whether a sandbox or container of the same name and attempt exists or is being made, in the
// words of containerd or of CRI-O.
func nameReserved(err error) bool {
	return cri.IsNameHeld(err) || err != nil && strings.HasSuffix(err.Error(), "name is reserved")
}
