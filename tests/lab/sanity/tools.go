//go:build tools

// Package tools pins the conformance tool.
package tools

import _ "github.com/kubernetes-csi/csi-test/v5/cmd/csi-sanity"
