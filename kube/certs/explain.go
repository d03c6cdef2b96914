package certs

import (
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// NewKubeconfig says how a node gets a client certificate if it can request none.
func NewKubeconfig(node, kubeconfig string) string {
	return "put a new kubeconfig in the place of " + kubeconfig + " and restart the agent; " +
		"on a node of the control plane, `kubeadm kubeconfig user --org system:nodes --client-name " +
		nodeSubject(node).CommonName + "` prints one, but its server may have to be corrected"
}

// explain adds to an error of a request to the API server what to do about it. with is the file of the credentials.
func explain(err error, with string, now time.Time) error {
	var unknown x509.UnknownAuthorityError
	var invalid x509.CertificateInvalidError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &unknown):
		return fmt.Errorf("%w; the CA in %s did not sign the API server's certificate: put the cluster's CA there", err, with)
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return fmt.Errorf("%w; the API server's certificate is valid from %s to %s, and the clock of this machine says %s: "+
			"renew the certificate or set the clock",
			err, stamp(invalid.Cert.NotBefore), stamp(invalid.Cert.NotAfter), stamp(now))
	case apierrors.IsUnauthorized(err):
		return fmt.Errorf("%w; the API server does not accept the credentials in %s: a bootstrap token may have expired "+
			"(kubeadm token create makes another), a certificate may be of another cluster", err, with)
	case apierrors.IsForbidden(err):
		return fmt.Errorf("%w; the credentials in %s may not request certificates: "+
			"bind the cluster role system:node-bootstrapper to them", err, with)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%w; run the agent as root", err)
	}
	return err
}
