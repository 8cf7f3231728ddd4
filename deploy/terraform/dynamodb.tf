# The tables that usher's leases are kept in: the same that `usher dynamodb create` makes, and what a node may do with
# them. Give the policy to the role of usher's pods or instances.

terraform {
  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = ">= 5.0"
    }
  }
}

variable "table" {
  description = "Name of the table of resources, as in usher's settings."
  type        = string
  default     = "usher-leases"
}

variable "tags" {
  type    = map(string)
  default = {}
}

resource "aws_dynamodb_table" "resources" {
  name                        = var.table
  billing_mode                = "PAY_PER_REQUEST"
  hash_key                    = "Pk"
  deletion_protection_enabled = true # fences live here: a table made anew would begin them again
  tags                        = var.tags

  attribute {
    name = "Pk"
    type = "S"
  }

  attribute {
    name = "desired_state"
    type = "S"
  }

  attribute {
    name = "lease_owner"
    type = "S"
  }

  global_secondary_index {
    name               = "desired_state-lease_owner"
    hash_key           = "desired_state"
    range_key          = "lease_owner"
    projection_type    = "INCLUDE"
    non_key_attributes = ["owner_generation", "fence", "rev"]
  }

  point_in_time_recovery {
    enabled = true
  }
}

resource "aws_dynamodb_table" "workers" {
  name         = "${var.table}-workers"
  billing_mode = "PAY_PER_REQUEST"
  hash_key     = "Pk"
  tags         = var.tags

  attribute {
    name = "Pk"
    type = "S"
  }
}

data "aws_iam_policy_document" "usher" {
  statement {
    actions = [
      "dynamodb:BatchGetItem",
      "dynamodb:DeleteItem",
      "dynamodb:GetItem",
      "dynamodb:PutItem",
      "dynamodb:Query",
      "dynamodb:Scan",
      "dynamodb:UpdateItem",
    ]
    resources = [
      aws_dynamodb_table.resources.arn,
      "${aws_dynamodb_table.resources.arn}/index/*",
      aws_dynamodb_table.workers.arn,
    ]
  }
}

output "policy_json" {
  description = "What a node may do; for aws_iam_role_policy."
  value       = data.aws_iam_policy_document.usher.json
}
