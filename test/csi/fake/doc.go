// Package fake is a CSI driver for tests: small, but real. It serves the identity, controller and node services over
// gRPC, registers like other drivers, and keeps volumes as ext4 images on loop devices, or as plain directories if they
// need no file system of their own. Volumes can be attached, staged, published as file systems or block devices,
// expanded in use, and asked for their usage; inline volumes are a tmpfs.
//
// All its state is in its state directory, so that it can be killed and started again at any moment. Files in the
// directory "fail" there make its calls fail, hang or end the process: see fail.go.
//
// Only tests call it.
package fake
