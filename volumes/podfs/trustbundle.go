package podfs

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/pem"
	"errors"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/ptr"
)

// bundle makes the file of a clusterTrustBundle source: each certificate of the bundles once, and nothing else of them.
// An optional source without a bundle gives an empty file.
func (c *content) bundle(ctx context.Context, s *corev1.ClusterTrustBundleProjection) (payload, error) {
	optional := ptr.Deref(s.Optional, false)
	bundles, err := c.objects.TrustBundles(ctx, s)
	switch {
	case err != nil && !(optional && apierrors.IsNotFound(err)):
		return nil, err
	case len(bundles) == 0 && !optional:
		return nil, errors.New("combination of signerName and labelSelector matched zero ClusterTrustBundles")
	}
	var anchors [][]byte
	for _, b := range bundles {
		anchors = append(anchors, certificates([]byte(b))...)
	}
	anchors = shuffled(anchors, string(c.Pod.UID)+"/"+c.Volume.Name+"/"+s.Path)
	files := payload{}
	return files, files.set(s.Path, c.ownFile(encodeCertificates(anchors), s.User))
}

// shuffled returns each certificate once, in an order that depends on the seed alone, so that pods cannot rely on it.
// The same bundles always make the same file.
func shuffled(all [][]byte, seed string) [][]byte {
	rank := func(der []byte) [sha256.Size]byte { return sha256.Sum256(append([]byte(seed+"/"), der...)) }
	slices.SortFunc(all, func(a, b []byte) int {
		ra, rb := rank(a), rank(b)
		return bytes.Compare(ra[:], rb[:])
	})
	return slices.CompactFunc(all, bytes.Equal)
}

// certificates are the contents of the CERTIFICATE blocks in text. Other blocks, headers and what stands between is
// left out.
func certificates(text []byte) (all [][]byte) {
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		if block.Type == pemCertificate {
			all = append(all, block.Bytes)
		}
	}
	return all
}

func encodeCertificates(all [][]byte) []byte {
	var out []byte
	for _, der := range all {
		out = append(out, pem.EncodeToMemory(&pem.Block{Type: pemCertificate, Bytes: der})...)
	}
	return out
}
