// Package records remembers which images were pulled with which credentials (KEP-2535), in the kubelet's files:
//
//	<root-dir>/image_manager/pulling/sha256-<hash of the image name>   ImagePullIntent: a pull has begun
//	<root-dir>/image_manager/pulled/sha256-<hash of the image ID>      ImagePulledRecord: who may use the image
//
// It owns these files, so that the kubelet and nodelet can replace each other. It never pulls, never asks the runtime
// and never stores a password: of a pull secret it stores the coordinates and a hash.
//
// Package images calls it around each pull and before a pod uses an image that is present. An intent is on the disk
// before the pull begins and stays until the record is on the disk, so a crash or a power cut cannot make a pulled
// image look preloaded. As long as there is an intent, no image of its repository without a record counts as preloaded:
// the runtime may show what was pulled by another tag or a digest, too. The intent of a pull that ended without an
// answer ends when its image has appeared and has a record, or has not appeared for the time Settle. A damaged file
// counts as the trace of a pull with unknown credentials.
package records
