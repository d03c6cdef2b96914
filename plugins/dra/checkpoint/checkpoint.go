// Package checkpoint reads and writes the file in which the kubelet keeps which resource claims are prepared for which
// pods, in the kubelet's form, so that a node can switch between the kubelet and this agent while claims are prepared.
//
// The names of the fields are the file's. It never looks at the disk: package dra, which alone calls it, does. A crash
// leaves nothing of it behind.
package checkpoint

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const (
	kind       = "DRACheckpoint"
	apiVersion = "checkpoint.dra.kubelet.k8s.io/v1"
)

// MaxSize bounds a file that is read: some ten thousand claims.
const MaxSize = 64 << 20

// Claim is what is kept of one claim.
type Claim struct {
	ClaimUID  types.UID
	ClaimName string
	Namespace string
	// PodUIDs are the pods that it is prepared for, or was to be.
	PodUIDs map[string]struct{}
	// DriverState has all drivers of the claim, those without devices too.
	DriverState map[string]DriverState
}

// DriverState is what one driver has prepared.
type DriverState struct{ Devices []Device }

// Device is a device of a claim.
type Device struct {
	PoolName, DeviceName string
	ShareID              *types.UID
	// RequestNames are the requests of the claim that it serves; none stands for all.
	RequestNames []string
	CDIDeviceIDs []string
}

// data is what the checksum is over, as text.
type data struct {
	metav1.TypeMeta
	ClaimInfoStateList []Claim
}

// file is the whole file.
type file struct {
	Data     string
	Checksum uint32
}

// Marshal returns the content of the file. Content that could not be read again is an error.
func Marshal(claims []Claim) ([]byte, error) {
	text, err := json.Marshal(data{metav1.TypeMeta{Kind: kind, APIVersion: apiVersion}, claims})
	if err != nil {
		return nil, err
	}
	text, err = json.Marshal(file{Data: string(text), Checksum: crc32.ChecksumIEEE(text)})
	if err == nil && len(text) > MaxSize {
		return nil, fmt.Errorf("the claims with the answers of their drivers take %d bytes, more than %d", len(text), MaxSize)
	}
	return text, err
}

// ErrChecksum says that the content is not what was written.
var ErrChecksum = errors.New("checksum does not match the content")

// Unmarshal reads the file's content: all of it, or nothing with an error.
func Unmarshal(text []byte) ([]Claim, error) {
	var f file
	if err := json.Unmarshal(text, &f); err != nil {
		return nil, fmt.Errorf("decode the checkpoint: %w", err)
	}
	if f.Checksum != crc32.ChecksumIEEE([]byte(f.Data)) {
		return nil, ErrChecksum
	}
	var d data
	if err := json.Unmarshal([]byte(f.Data), &d); err != nil {
		return nil, fmt.Errorf("Data is not JSON in the kubelet's format: %w", err)
	}
	seen := map[string]bool{}
	for _, c := range d.ClaimInfoStateList {
		name := c.Namespace + "/" + c.ClaimName
		if c.Namespace == "" || c.ClaimName == "" || c.ClaimUID == "" || seen[name] {
			return nil, fmt.Errorf("claim %q with UID %q is incomplete or listed twice", name, c.ClaimUID)
		}
		seen[name] = true
	}
	return d.ClaimInfoStateList, nil
}
